"""`attn_implementation="simdformer"`: what transformers' own implementations give, in every way in
which transformers calls an attention."""

import numpy as np
import pytest
import torch
import transformers

import simdformer.transformers
from hugging import IDS, LEFT, PADDINGS, distance, made, random_weights, with_attention
from simdformer.transformers import attention

ROUNDING = 2e-5  # standard deviations of a logit, float32; a forgotten window or sink is above 0.1

DECODERS = [
    "llama-bias",  # head_dim that is not hidden_size / heads
    "llama2",
    "qwen2",
    "qwen2-window",  # windows in some layers
    "qwen3",
    "mistral",  # a window of 6
    "gemma2",  # softcap, and a scale of its own
    "gemma3",
    "gpt-oss",  # sinks
    "phi3",
    "gpt2",
]
SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "pad_token_id": 0,
}
BART = {
    "vocab_size": 96,
    "d_model": 32,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "max_position_embeddings": 64,
}
T5 = {
    "vocab_size": 96,
    "d_model": 32,
    "d_ff": 48,
    "d_kv": 8,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}
CHUNKS = {
    "num_key_value_heads": 2,
    "intermediate_size_mlp": 48,
    "attention_chunk_size": 6,
    "head_dim": 8,
    "num_local_experts": 2,
    "num_hidden_layers": 4,
}
LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 16,
    "num_key_value_heads": 4,
}


@pytest.fixture(autouse=True)
def registered():
    simdformer.transformers.register()


@pytest.fixture
def ours(monkeypatch):
    """The calls of our function, so that nothing passes because something else ran."""
    calls = []
    function = simdformer.transformers.scaled_dot_product_attention

    def counted(*arguments, **options):
        calls.append(options | {"attn_mask": arguments[3]})
        return function(*arguments, **options)

    monkeypatch.setattr(simdformer.transformers, "scaled_dot_product_attention", counted)
    return calls


def rms(x):
    return x.square().mean().sqrt()


def texts(logits, mask):
    """Without the rows of padding, which may hold anything."""
    return logits if mask is None else logits[mask.bool()]


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("name", DECODERS)
def test_logits_are_those_of_eager(name, padding, ours):
    model, mask = made(name), PADDINGS[padding]
    expected = with_attention(model, "eager", lambda m: m(IDS, attention_mask=mask).logits)
    got = with_attention(model, "simdformer", lambda m: m(IDS, attention_mask=mask).logits)
    assert distance(texts(got, mask), texts(expected, mask)) < ROUNDING
    assert len(ours) == model.config.num_hidden_layers


def test_a_mistake_would_be_seen():
    """What the threshold is worth: sinks, cap and window each move the logits by far more."""
    for name, setting in (("gpt-oss", "sinks"), ("gemma2", "cap"), ("mistral", "window")):
        model = made(name)
        expected = with_attention(model, "eager", lambda m: m(IDS).logits)
        for module in model.modules():
            if setting == "sinks" and hasattr(module, "sinks"):
                module.sinks.data += 3
            if setting == "cap" and hasattr(module, "attn_logit_softcapping"):
                module.attn_logit_softcapping = None
        if setting == "window":
            model.config.sliding_window = 7
        other = with_attention(model, "simdformer", lambda m: m(IDS).logits)
        assert distance(other, expected) > 1000 * ROUNDING, name


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"cache_implementation": "static"},
        {"use_cache": False},
        {"num_beams": 3},
        {"num_beams": 2, "cache_implementation": "static"},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["llama3.2", "mistral", "gemma2", "gpt-oss", "qwen3"])
def test_generated_ids_are_those_of_eager(name, options, ours):
    """Of two sequences, one with padding on the left, beyond the window."""
    model = made(name)

    def generate(model):
        return model.generate(
            IDS, attention_mask=LEFT, max_new_tokens=12, do_sample=False, **options
        )

    expected = with_attention(model, "eager", generate)
    assert not ours
    assert with_attention(model, "simdformer", generate).tolist() == expected.tolist()
    assert len(ours) == 12 * model.config.num_hidden_layers
    assert all(call["attn_mask"] is None for call in ours)  # padding on the left is a rule
    assert len(set(expected[:, 20:].flatten().tolist())) > 1


def test_a_prompt_in_two_pieces_sees_what_it_sees_whole():
    model = made("llama3")
    whole = with_attention(model, "simdformer", lambda m: m(IDS).logits)

    def pieces(model):
        cache = transformers.DynamicCache(config=model.config)
        first = model(IDS[:, :11], past_key_values=cache).logits
        return torch.cat([first, model(IDS[:, 11:], past_key_values=cache).logits], 1)

    assert distance(with_attention(model, "simdformer", pieces), whole) < ROUNDING


def test_two_texts_packed_into_one_row_do_not_see_each_other(ours):
    """transformers reads them off positions that begin anew; its mask is a tensor then."""
    model = made("llama3")
    positions = torch.cat([torch.arange(12), torch.arange(8)])[None]
    got = with_attention(
        model, "simdformer", lambda m: m(IDS[:1], position_ids=positions, use_cache=False).logits
    )
    alone = with_attention(model, "eager", lambda m: m(IDS[:1, 12:]).logits)
    assert distance(got[:, 12:], alone) < ROUNDING
    assert len(ours) == model.config.num_hidden_layers


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["llama2", "gemma2", "gpt-oss", "gpt2"])
def test_sixteen_bits_are_as_right_as_eager(name, dtype):
    """Against the same rounded weights in float32."""
    model = made(name, dtype)
    for mask in PADDINGS.values():
        logits = [
            texts(with_attention(m, by, lambda m: m(IDS, attention_mask=mask).logits), mask)  # noqa: B023
            for m, by in (
                (model, "eager"),
                (model, "simdformer"),
                (made(name, dtype).float(), "eager"),
            )
        ]
        eager, got, exact = (x.double() for x in logits)
        assert logits[1].dtype is dtype
        # a rounding may choose another expert, which weighs more than roundings do
        assert rms(got - exact) <= (2 if name == "gpt-oss" else 1.2) * rms(eager - exact)


@pytest.mark.parametrize(
    ("kind", "auto", "sizes"),
    [
        ("bert", "AutoModelForMaskedLM", SIZES),
        (
            "modernbert",  # a window on both sides
            "AutoModelForMaskedLM",
            SIZES | {"local_attention": 8, "global_attn_every_n_layers": 2}
            | {"cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2},
        ),
        ("llama4_text", "AutoModelForCausalLM", SIZES | CHUNKS),
        ("deepseek_v3", "AutoModelForCausalLM", SIZES | LATENT),  # values narrower than keys
    ],
)  # fmt: skip
@pytest.mark.parametrize("padding", PADDINGS)
def test_other_kinds_of_attention(kind, auto, sizes, padding, ours):
    config = transformers.AutoConfig.for_model(kind, **sizes)
    model, mask = random_weights(getattr(transformers, auto), config), PADDINGS[padding]
    expected = with_attention(model, "eager", lambda m: m(IDS, attention_mask=mask).logits)
    got = with_attention(model, "simdformer", lambda m: m(IDS, attention_mask=mask).logits)
    assert distance(texts(got, mask), texts(expected, mask)) < ROUNDING
    assert len(ours) == model.config.num_hidden_layers
    assert all(call["attn_mask"] is None for call in ours)  # rules, no matrices
    patterns = {(call["window"], call["chunk"]) for call in ours}
    local = {"modernbert": {((4, 4), None)}, "llama4_text": {(None, 6)}}
    assert patterns == {(None, None)} | local.get(kind, set())


@pytest.mark.parametrize("length", [3, 20])
@pytest.mark.parametrize("padding", ["none", "left"])
def test_chunks_go_on_while_a_text_is_written(padding, length, ours):
    """Llama 4's, of 6 positions, from within the first and from within the fourth on; a layer's
    cache forgets what lies before them."""
    config = transformers.AutoConfig.for_model("llama4_text", **SIZES | CHUNKS)
    model = random_weights(transformers.AutoModelForCausalLM, config)
    prompt = IDS[:, -length:]
    mask = torch.ones_like(prompt)
    mask[0, : 2 if padding == "left" else 0] = 0

    def generate(model):
        out = model.generate(
            prompt,
            attention_mask=mask,
            max_new_tokens=14,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
        )
        return out.sequences, torch.stack(out.logits)

    ids, logits = with_attention(model, "sdpa", generate)
    assert not ours
    got_ids, got_logits = with_attention(model, "simdformer", generate)
    assert got_ids.tolist() == ids.tolist()
    assert distance(got_logits, logits) < ROUNDING
    assert len(ours) == 14 * config.num_hidden_layers
    assert all(call["attn_mask"] is None for call in ours)


@pytest.mark.parametrize(("kind", "sizes"), [("t5", T5), ("bart", BART)])
def test_encoders_with_decoders(kind, sizes, ours):
    """Attention across, and T5's biases of distance; padding in what is read."""
    config = transformers.AutoConfig.for_model(kind, **sizes)
    model = random_weights(transformers.AutoModelForSeq2SeqLM, config)

    def logits(model):
        return model(IDS, attention_mask=LEFT, decoder_input_ids=IDS[:, :9]).logits

    def ids(model):
        return model.generate(IDS, attention_mask=LEFT, max_new_tokens=6, do_sample=False).tolist()

    expected = with_attention(model, "eager", logits)
    assert distance(with_attention(model, "simdformer", logits), expected) < ROUNDING
    assert len(ours) == 6
    assert with_attention(model, "simdformer", ids) == with_attention(model, "eager", ids)


def test_biases_of_distance_have_a_gradient():
    """T5's, which are added to the scores of all layers."""
    config = transformers.AutoConfig.for_model("t5", **T5)
    model = random_weights(transformers.AutoModelForSeq2SeqLM, config)

    def gradients(implementation):
        model.set_attn_implementation(implementation)
        model.zero_grad()
        model(IDS, attention_mask=LEFT, labels=IDS[:, :9].clone()).loss.backward()
        return {name: p.grad.clone() for name, p in model.named_parameters()}

    right, found = gradients("eager"), gradients("simdformer")
    assert sum("relative_attention_bias" in name for name in right) == 2
    for name, gradient in right.items():
        assert (found[name] - gradient).norm() < 1e-4 * gradient.norm(), name


def test_patterns_are_there_where_they_are_asked_for():
    model = made("gpt-oss")

    def patterns(model):
        return model(IDS, output_attentions=True).attentions

    expected = with_attention(model, "eager", patterns)
    for got, right in zip(with_attention(model, "simdformer", patterns), expected, strict=True):
        assert got.shape == right.shape
        assert (got - right).abs().max() < 1e-5


@pytest.mark.parametrize("recorded", [False, True])
def test_patterns_that_are_none_are_not_there(recorded):
    """As peft calls every model: output_attentions=None."""
    model = made("llama2")
    model.set_attn_implementation("simdformer")
    with torch.set_grad_enabled(recorded):
        found = model(IDS, output_attentions=None)
        assert found.attentions is None
        assert torch.equal(found.logits, model(IDS).logits)


def test_masks_of_ones_own():
    """(B,1,L,S), boolean and added: transformers hands them through."""
    model = made("llama2")
    blocks = torch.tril(torch.ones(20, 20, dtype=torch.bool))
    blocks[10:, :10] = False
    added = torch.zeros(20, 20).masked_fill(~blocks, torch.finfo(torch.float32).min)
    expected = with_attention(
        model, "eager", lambda m: m(IDS, attention_mask=added[None, None]).logits
    )
    for mask in (blocks, added):
        got = with_attention(
            model,
            "simdformer",
            lambda m: m(IDS, attention_mask=mask[None, None]).logits,  # noqa: B023
        )
        assert distance(got, expected) < ROUNDING


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_nothing_is_copied(dtype, ours, monkeypatch):
    """What the kernel reads is what the tensors hold, transposed ones too; what it writes is the
    result."""
    seen = []
    function = simdformer.transformers.scaled_dot_product_attention

    def watched(*arrays, **options):
        seen.extend([*arrays[:3], options["out"]])
        return function(*arrays, **options)

    monkeypatch.setattr(simdformer.transformers, "scaled_dot_product_attention", watched)
    heads = torch.randn(2, 5, 8, 16).to(dtype)
    query, key, value = heads[:, :, :4], heads[:, :, 4:6], heads[:, :, 6:]
    tensors = [x.transpose(1, 2) for x in (query, key, value)]
    with torch.inference_mode():
        out, weights = attention(torch.nn.Module(), *tensors, None)
    assert weights is None
    assert out.shape == (2, 5, 4, 16)
    assert out.is_contiguous()
    assert out.dtype is dtype
    assert [a.ctypes.data for a in seen] == [x.data_ptr() for x in (*tensors, out)]
    exact = torch.nn.functional.scaled_dot_product_attention(
        *(x.double() for x in tensors), is_causal=True, enable_gqa=True
    )
    assert np.allclose(
        out.transpose(1, 2).double(), exact, atol=1e-5 if dtype.itemsize == 4 else 2e-2
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama2", pytest.param("mistral", marks=pytest.mark.slow)])
def test_a_graph_stays_whole(name):
    """With padding and without, since masks are other things then."""
    model = made(name)
    model.set_attn_implementation("simdformer")
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        for mask in (None, LEFT):
            expected = texts(model(IDS, attention_mask=mask, use_cache=False).logits, mask)
            got = texts(compiled(IDS, attention_mask=mask, use_cache=False).logits, mask)
            assert distance(got, expected) < ROUNDING


@pytest.mark.parametrize("name", ["llama2", "gemma2"])
def test_a_step_of_training_has_the_gradients_of_eager(name):
    """Every parameter's, against eager in float64: no further from it than eager in float32."""
    model = made(name).train()

    def gradients(model, attention):
        model.set_attn_implementation(attention)
        model.zero_grad()
        model(IDS, labels=IDS).loss.backward()
        return {name: one.grad.double().clone() for name, one in model.named_parameters()}

    ours, eager = gradients(model, "simdformer"), gradients(model, "eager")
    exact = gradients(model.double(), "eager")
    for parameter, want in exact.items():
        error, theirs = ((one[parameter] - want).norm() for one in (ours, eager))
        # Rounding is by chance: half as much again, and one ulp of the norm.
        assert error <= 1.5 * theirs + 1.2e-7 * want.norm(), parameter


def test_a_gradient_through_dropout_is_refused():
    model = made("llama2", attention_dropout=0.25).train()
    model.set_attn_implementation("simdformer")
    with pytest.raises(RuntimeError, match=r"^simdformer attention: no gradient: dropout is 0\.25"):
        model(IDS)


def test_dropout_is_refused():
    model = made("llama2", attention_dropout=0.25).train()
    with torch.no_grad(), pytest.raises(ValueError, match=r"dropout is 0\.25.*model\.eval\(\)"):
        with_attention(model, "simdformer", lambda m: m(IDS))
    assert with_attention(model.eval(), "simdformer", lambda m: m(IDS)).logits.isfinite().all()


def test_tensors_elsewhere_are_refused():
    there = torch.empty(1, 2, 3, 4, device="meta")
    with pytest.raises((TypeError, BufferError, RuntimeError), match="meta"):
        attention(torch.nn.Module(), there, there, there, None)


def test_a_transformers_whose_masks_ask_otherwise_is_refused(monkeypatch):
    def of_5_3(batch_size, cache_position, kv_length):
        raise AssertionError

    monkeypatch.setattr(simdformer.transformers, "sdpa_mask", of_5_3)
    with pytest.raises(ImportError, match=r"found transformers \d+\.\d+\.\S+, needs 5\.4 or"):
        simdformer.transformers.register()
