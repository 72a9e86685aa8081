"""The masks that transformers asks for, as rules: the same as its own, and no matrix."""

import numpy as np
import pytest
import torch
from transformers import masking_utils

import simdformer as sf
from simdformer.transformers import attention
from simdformer.transformers.visible_keys import VisibleKeys, visible_keys

CAUSAL = masking_utils.causal_mask_function
EVERYTHING = masking_utils.bidirectional_mask_function
RULES = {  # the function, and what transformers says about its width
    "causal": (CAUSAL, None),
    "everything": (EVERYTHING, None),
    "window 4": (masking_utils.sliding_window_causal_mask_function(4), 4),
    "window 50": (masking_utils.sliding_window_causal_mask_function(50), 50),
    "both sides": (masking_utils.sliding_window_bidirectional_mask_function(3), 3),
    "both sides 50": (masking_utils.sliding_window_bidirectional_mask_function(50), 50),
}
OTHERS = {
    "chunks from elsewhere": (
        masking_utils.chunked_causal_mask_function(4, torch.tensor([0, 1])),
        4,
    ),
    "wider than it says": (masking_utils.sliding_window_causal_mask_function(5), 4),
    "causal or the first two": (masking_utils.or_masks(CAUSAL, lambda b, h, q, k: k < 2), None),
}
SHAPES = {  # queries, keys, where the first query stands, where the first key
    "prompt": (9, 9, 0, 0),
    "token": (1, 10, 9, 0),
    "piece": (4, 10, 6, 0),
    "static": (5, 16, 3, 0),
    "static prompt": (9, 16, 0, 0),
    "rolling": (3, 8, 12, 7),
    "rolling token": (1, 8, 14, 7),
}
PADDINGS = {
    "none": lambda length: None,
    "all text": lambda length: torch.ones(2, length, dtype=torch.bool),
    "left": lambda length: torch.arange(length) >= torch.tensor([[0], [2]]),
    "right": lambda length: torch.arange(length) < torch.tensor([[length], [length - 2]]),
    "holes": lambda length: torch.arange(length) % 3 != torch.tensor([[0], [1]]),
    "nothing": lambda length: torch.zeros(2, length, dtype=torch.bool),
}


def arguments(shape, padding, rule):
    queries, keys, q_offset, kv_offset = SHAPES[shape]
    function, width = rule
    return {
        "batch_size": 2,
        "q_length": queries,
        "kv_length": keys,
        "q_offset": q_offset,
        "kv_offset": kv_offset,
        "mask_function": function,
        "attention_mask": PADDINGS[padding](q_offset + queries),
        "local_size": width,
    }


def expected(given):
    return masking_utils.sdpa_mask(**given, allow_is_causal_skip=False)


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", RULES)
def test_a_rule_hides_what_the_mask_hides(name, shape, padding):
    """Seen through the weights of attention: exactly the hidden keys have none."""
    given = arguments(shape, padding, RULES[name])
    mask = visible_keys(**given, allow_is_causal_skip=False)
    assert type(mask) is VisibleKeys
    assert mask.shape == expected(given).shape
    assert (mask.rule.padding is None) == (padding != "holes")
    assert np.array_equal(seen(mask.rule, given), expected(given))


def seen(rule, given):
    """Which keys our attention looks at."""
    query = np.zeros((2, 1, given["q_length"], 4), np.float32)
    key = np.zeros((2, 1, given["kv_length"], 4), np.float32)
    options = vars(rule) | {"return_weights": True}
    _, weights = sf.scaled_dot_product_attention(query, key, key, options.pop("padding"), **options)
    return weights > 0


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("width", [4, 13, 50])
def test_chunks_are_a_rule_where_they_begin_with_the_texts(width, shape, padding):
    """As transformers counts them: behind the padding on the left. A piece of a text whose first
    keys are gone begins within a chunk, and is a matrix; a single token is not."""
    given = arguments(shape, padding, (None, width))
    text = given["attention_mask"]
    left = torch.zeros(2, dtype=int) if text is None else (text.cumsum(-1) == 0).sum(-1)
    given["mask_function"] = masking_utils.chunked_causal_mask_function(width, left)
    mask = visible_keys(**given, allow_is_causal_skip=False)
    if type(mask) is VisibleKeys:
        assert np.array_equal(seen(mask.rule, given), expected(given))
    else:
        assert torch.equal(mask, expected(given))
    if padding in ("none", "all text", "left", "right") and shape != "rolling":
        assert type(mask) is VisibleKeys
        hides = max(given["q_offset"] + given["q_length"], given["kv_length"]) > width
        assert (mask.rule.chunk is not None) == (hides and given["q_length"] > 1)


@pytest.mark.parametrize("name", OTHERS)
def test_other_masks_are_made_as_they_were(name):
    given = arguments("prompt", "left", OTHERS[name])
    mask = visible_keys(**given)
    assert type(mask) is torch.Tensor
    assert torch.equal(mask, expected(given))


@pytest.mark.parametrize("padding", ["none", "all text"])
@pytest.mark.parametrize(("name", "shape"), [
    ("causal", "prompt"), ("causal", "token"), ("window 50", "prompt"), ("window 50", "token"),
])  # fmt: skip
def test_what_goes_without_saying_is_not_said(name, shape, padding):
    assert visible_keys(**arguments(shape, padding, RULES[name])) is None


def test_what_does_not_go_without_saying_is_said():
    for name, shape, padding in (
        ("causal", "piece", "none"),
        ("causal", "static", "none"),
        ("causal", "prompt", "left"),
        ("window 4", "prompt", "none"),
        ("window 4", "token", "none"),
        ("everything", "prompt", "none"),  # skipped only where both are allowed to be
    ):
        assert visible_keys(**arguments(shape, padding, RULES[name])) is not None, (name, shape)
    given = arguments("prompt", "none", RULES["everything"])
    assert visible_keys(**given, allow_is_bidirectional_skip=True) is None


def test_who_computes_with_it_gets_the_mask():
    given = arguments("prompt", "left", RULES["window 4"])
    mask, right = visible_keys(**given), expected(given)
    assert "window=4" in repr(mask)
    assert torch.equal(mask[:, :, :, :5], right[:, :, :, :5])
    assert torch.equal(torch.where(mask, 0.0, -1.0), torch.where(right, 0.0, -1.0))
    assert torch.equal(mask & right.flip(-1), right & right.flip(-1))
    assert "True" in repr(mask)


def test_what_is_written_into_it_counts():
    """A rule that was written into is a rule no more, and the attention takes the matrix."""
    given = arguments("prompt", "none", RULES["causal"]) | {"batch_size": 1}
    mask = visible_keys(**given, allow_is_causal_skip=False)
    heads = torch.randn(1, 1, 9, 4)
    mask[:, :, :, 3] = True
    mask &= torch.arange(9) != 2
    seen = torch.ones(9, 9, dtype=torch.bool).tril()
    seen[:, 3], seen[:, 2] = True, False
    with torch.inference_mode():
        out, weights = attention(
            torch.nn.Module(), heads, heads, heads, mask, output_attentions=True
        )
    assert torch.equal(weights > 0, seen[None, None])
    right = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, seen)
    assert torch.allclose(out.transpose(1, 2), right, atol=1e-6)


def test_it_needs_no_memory():
    """The matrix of these 300,000 positions would have 90 GB."""
    mask = visible_keys(
        batch_size=1, q_length=300_000, kv_length=300_000, attention_mask=torch.ones(1, 299_990)
    )
    assert mask.shape == (1, 1, 300_000, 300_000)
    assert mask.rule.key_lengths.tolist() == [299_990]
