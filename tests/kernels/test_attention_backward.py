"""The gradients of attention against the float64 reference, on every instruction set."""

import ml_dtypes
import numpy as np
import pytest

import simdformer as sf

FUNCTION = "backward.scaled_dot_product_attention"
EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def dtype_of(name):
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


# name: (query, key, value dim), the forward's keywords; a callable gets the shape of the scores
PROBLEMS = {
    "one head without an axis": ((37, 24), (37, 24), 24, {}),
    "causal": ((2, 3, 65, 16), (2, 3, 65, 16), 16, {"is_causal": True}),
    "more keys than a block": ((1, 2, 70, 33), (1, 2, 530, 33), 33, {}),
    "causal over blocks": (
        (1, 1, 300, 8), (1, 1, 600, 8), 8, {"is_causal": True, "causal_offset": 300},
    ),
    "an offset a sequence": (
        (2, 2, 5, 8), (2, 2, 9, 8), 8, {"is_causal": True, "causal_offset": [-2, 4]},
    ),
    "gqa": ((2, 6, 40, 16), (2, 2, 40, 16), 16, {"is_causal": True}),
    "mqa, group beyond a tile": ((70, 7, 8), (1, 7, 8), 8, {}),
    "value dim": ((2, 40, 16), (2, 50, 16), 40, {}),
    "no value": ((2, 4, 8), (2, 4, 8), 0, {}),
    "long heads": ((1, 20, 300), (1, 20, 300), 270, {"is_causal": True}),
    "window": ((2, 90, 8), (2, 90, 8), 8, {"is_causal": True, "window": 7}),
    "two-sided window": ((2, 90, 8), (2, 90, 8), 8, {"window": (3, 5)}),
    "chunk": ((2, 90, 8), (2, 90, 8), 8, {"is_causal": True, "chunk": 13}),
    "padding": (
        (2, 2, 20, 8), (2, 2, 20, 8), 8,
        {"is_causal": True, "key_starts": [0, 6], "key_lengths": [11, 20]},
    ),
    "segments": (
        (1, 2, 12, 8), (1, 2, 12, 8), 8, {"segment_ids": [[0] * 5 + [3] * 7], "is_causal": True},
    ),
    "keys of no segment": (
        (1, 2, 4, 8), (1, 2, 6, 8), 8, {"segment_ids": ([[1, 1, 2, 2]], [[1, 1, 1, 9, 9, 2]])},
    ),
    "cumulative lengths": ((2, 12, 8), (2, 12, 8), 8, {"cu_seqlens": [0, 3, 3, 12]}),
    "boolean mask": ((2, 2, 30, 8), (2, 2, 30, 8), 8, {"attn_mask": ("bool", (30, 30))}),
    "additive mask": ((2, 2, 30, 8), (2, 2, 30, 8), 8, {"attn_mask": ("add", (2, 1, 30, 30))}),
    "mask of a row": ((2, 2, 30, 8), (2, 2, 30, 8), 8, {"attn_mask": ("add", (30,))}),
    "softcap": ((2, 30, 8), (2, 30, 8), 8, {"softcap": 1.5, "is_causal": True}),
    "softcap, mask": (
        (2, 2, 30, 8), (2, 1, 30, 8), 8, {"softcap": 1.5, "attn_mask": ("add", (2, 30, 30))},
    ),
    "sinks": ((2, 4, 30, 8), (2, 2, 30, 8), 8, {"sinks": True, "is_causal": True}),
    "scale": ((2, 30, 8), (2, 30, 8), 8, {"scale": -0.3}),
    "broadcast": ((3, 2, 10, 8), (1, 2, 10, 8), 8, {"is_causal": True}),
    "query broadcast": ((1, 2, 10, 8), (3, 2, 10, 8), 8, {}),
}  # fmt: skip


def problem(name, dtype, seed=0):
    """The arguments of the backward, keywords with the needs for all there is."""
    rng = np.random.default_rng(seed)
    of_query, of_key, value_dim, given = PROBLEMS[name]
    kind = dtype_of(dtype)

    def random(*shape):
        return rng.standard_normal(shape).astype(kind)

    query, key, value = random(*of_query), random(*of_key), random(*of_key[:-1], value_dim)
    options = dict(given)
    needs = ["query", "key", "value"]
    mask = options.pop("attn_mask", None)
    if mask is not None:
        style, shape = mask
        if style == "bool":
            mask = rng.random(shape) < 0.6
            mask[4] = False
        else:
            mask = random(*shape)
            mask[..., 3] = -np.inf
            needs.append("attn_mask")
    if options.get("sinks"):
        options["sinks"] = random(of_query[-3])
        needs.append("sinks")
    out, lse = sf.scaled_dot_product_attention(query, key, value, mask, return_lse=True, **options)
    grad = random(*out.shape)
    return (grad, query, key, value, out, lse, mask), {**options, "needs": needs}


def compare(got, wanted, dtype, eps):
    for name, ours, exact in zip(got._fields, got, wanted, strict=True):
        assert (ours is None) == (exact is None), name
        if ours is None:
            continue
        assert ours.shape == exact.shape, name
        error = np.abs(ours.astype(np.float64) - exact).max(initial=0)
        assert error <= eps * max(np.abs(exact).max(initial=0), 1e-3), (name, error)


def exact_arguments(arguments, options):
    """In float64, with out and lse of a float64 forward for 16-bit arrays: theirs are rounded."""
    *arrays, mask = arguments
    wide = [a.astype(np.float64) for a in arrays]
    mask = mask if mask is None or mask.dtype == bool else mask.astype(np.float64)
    if "sinks" in options:
        options = {**options, "sinks": options["sinks"].astype(np.float64)}
    return (*wide, mask), options


@pytest.mark.parametrize("dtype", EPS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_gradients(name, dtype, isa):
    arguments, options = problem(name, dtype)
    got = sf.backward.scaled_dot_product_attention(*arguments, **options)
    exact, exact_options = exact_arguments(arguments, options)
    wanted = sf.reference.backward.scaled_dot_product_attention(*exact, **exact_options)
    # sums of up to 600 terms that cancel in float32 and float64; one rounding of 16 bits
    compare(got, wanted, dtype, EPS[dtype] * (64 if dtype in ("float32", "float64") else 1.2))
    for field, given in zip(got._fields, (*arguments[1:4], arguments[6]), strict=False):
        if getattr(got, field) is not None:
            assert getattr(got, field).dtype == given.dtype


@pytest.mark.parametrize(
    "name", ["causal", "gqa", "causal over blocks", "more keys than a block", "segments"]
)
def test_threads_change_no_bit(name):
    arguments, options = problem(name, "float32")
    results = []
    for count in (1, 2, 3):
        with sf.num_threads(count):
            results.append(sf.backward.scaled_dot_product_attention(*arguments, **options))
    for other in results[1:]:
        for first, second in zip(results[0], other, strict=True):
            assert first is second is None or first.tobytes() == second.tobytes()


@pytest.mark.parametrize("where", [1, 2, 3, 0])
def test_what_is_hidden_may_be_nan(where, isa):
    arguments, _ = problem("causal", "float32")
    arguments = list(arguments)
    options = {"is_causal": True, "key_lengths": [40, 60], "causal_offset": -30}
    arguments[4], arguments[5] = sf.scaled_dot_product_attention(
        *arguments[1:4], return_lse=True, **options
    )
    clean = sf.backward.scaled_dot_product_attention(*arguments[:6], **options)
    dirty = arguments[where].copy()
    if where in (2, 3):
        dirty[0, :, 40:] = dirty[1, :, 60:] = np.nan
    else:  # a query that sees nothing
        dirty[:, :, :30] = np.nan
    arguments[where] = dirty
    got = sf.backward.scaled_dot_product_attention(*arguments[:6], **options)
    for before, after in zip(clean[:3], got[:3], strict=True):
        # a tile with NaN is added up in another order
        np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-5)
    assert not got.query[:, :, :30].any()


def test_nan_that_is_seen_stays():
    arguments, _ = problem("causal", "float32")
    grad = arguments[0].copy()
    grad[0, 0, 9, 2] = np.nan
    got = sf.backward.scaled_dot_product_attention(grad, *arguments[1:6], is_causal=True)
    for of_rows in (got.query[0, 0, 9], got.key[0, 0, :10]):
        assert np.isnan(of_rows).all()
    for of_rows in (got.query[0, 0, 10:], got.key[0, 0, 10:]):
        assert np.isfinite(of_rows).all()
    assert np.isfinite(got.value[0, 1]).all()


def test_the_gradient_of_lse_counts():
    arguments, options = problem("gqa", "float64")
    of_lse = np.random.default_rng(5).standard_normal(arguments[5].shape)
    got = sf.backward.scaled_dot_product_attention(*arguments, **options, grad_lse=of_lse)
    compare(
        got,
        sf.reference.backward.scaled_dot_product_attention(*arguments, **options, grad_lse=of_lse),
        "float64",
        1e-13,
    )


def test_needs_and_strides():
    arguments, options = problem("gqa", "float32")
    whole = sf.backward.scaled_dot_product_attention(*arguments, **options)
    for name in ("query", "key", "value"):
        only = sf.backward.scaled_dot_product_attention(*arguments, **{**options, "needs": (name,)})
        assert [f for f in only._fields if getattr(only, f) is not None] == [name]
        assert getattr(only, name).tobytes() == getattr(whole, name).tobytes()
    turned = [np.asfortranarray(a) if a is not None else None for a in arguments]
    for a, b in zip(
        sf.backward.scaled_dot_product_attention(*turned, **options)[:3], whole[:3], strict=True
    ):
        assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("shape", [(0, 2, 4, 8), (2, 0, 4, 8), (2, 2, 0, 8)])
def test_empty(shape):
    x = np.ones(shape, np.float32)
    got = sf.backward.scaled_dot_product_attention(x, x, x, x, x, np.zeros(shape[:-1], np.float32))
    assert [a.shape for a in got[:3]] == [shape] * 3
    keys = np.ones((2, 2, 0, 8), np.float32)
    query = np.ones((2, 2, 3, 8), np.float32)
    lse = np.full((2, 2, 3), -np.inf, np.float32)
    none = sf.backward.scaled_dot_product_attention(query, query, keys, keys, 0 * query, lse)
    assert none.key.shape == keys.shape
    assert not none.query.any()


def test_refusals():
    arguments, _ = problem("causal", "float32")
    call = sf.backward.scaled_dot_product_attention
    grad, query, key, value, out, lse, _ = arguments
    with pytest.raises(ValueError, match=r"lse is missing, needs .*return_lse=True"):
        call(grad, query, key, value, out)
    with pytest.raises(ValueError, match=rf"{FUNCTION}: block_table is given"):
        call(grad, query, key, value, out, lse, block_table=np.zeros((1, 1), int))
    with pytest.raises(ValueError, match=r"needs has 'weights', needs names"):
        call(grad, query, key, value, out, lse, needs=("weights",))
    with pytest.raises(ValueError, match=r"needs sinks to be given"):
        call(grad, query, key, value, out, lse, needs=("sinks",))
    with pytest.raises(ValueError, match=r"a boolean one has none"):
        call(grad, query, key, value, out, lse, np.ones((65, 65), bool), needs=("attn_mask",))
    with pytest.raises(ValueError, match=rf"{FUNCTION}: lse has shape"):
        call(grad, query, key, value, out, lse[..., 1:])
    with pytest.raises(TypeError, match=rf"{FUNCTION}: lse "):
        call(grad, query, key, value, out, lse.astype(np.float64))
    with pytest.raises(ValueError, match=rf"{FUNCTION}: grad has shape"):
        call(grad[1:], query, key, value, out, lse)


@pytest.mark.parametrize("causal", [False, True])
def test_autograd_of_torch_agrees(causal):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    q, k, v, grad = (torch.tensor(rng.standard_normal((2, 3, 50, 16))) for _ in range(4))
    for x in (q, k, v):
        x.requires_grad_()
    theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    theirs.backward(grad)
    plain = [x.detach() for x in (q, k, v)]
    out, lse = sf.scaled_dot_product_attention(*plain, is_causal=causal, return_lse=True)
    got = sf.backward.scaled_dot_product_attention(grad, *plain, out, lse, is_causal=causal)
    for ours, x in zip(got, (q, k, v), strict=False):
        np.testing.assert_allclose(ours, x.grad.numpy(), rtol=0, atol=1e-13)
