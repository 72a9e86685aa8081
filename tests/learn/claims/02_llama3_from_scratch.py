# %% lines = (FOLDER / "tokenizer.model").read_bytes().splitlines()
assert {bytes([byte]) for byte in range(256)} == set(list(ranks)[:256])

# %% def merge_from_the_left(piece):
assert decode(wrong) == decode(right) == text
assert wrong != right

# %% E, H, V = params["dim"], params["n_heads"], params["vocab_size"]
assert not params.get("use_scaled_rope"), (
    "this notebook follows Llama 3; 3.1 scales its frequencies"
)

# %% def inner_width(params):
assert tensors["layers.0.feed_forward.w1.weight"].shape == (I, E)
assert parameters(params, tied) == sum(tensor.size for tensor in tensors.values())
assert (parameters(llama3_8b), inner_width(llama3_8b)) == (8_030_261_248, 14336)

# %% report = sf.check(sf.embedding, table[ids - 1], ids, table)
assert not report
assert report.diagnosis

# %% def bfloat16(x):
assert loss(in_32, exact) < 1e-6
assert loss(kernel, exact) < 1.01 * loss(rounded_once, exact) < 0.8 * loss(in_16, exact)

# %% report = sf.check(sf.rms_norm, np.float32(in_16), embedded, norm_weight, eps=eps)
assert report
assert "right to bfloat16, not to float32" in report.remarks[0]

# %% def frequencies(D, theta):
np.testing.assert_allclose(of_8b[[0, 1, 2, 31, 63]], expected, rtol=3e-5)

# %% far = np.exp(1j * np.outer(np.arange(L) + 5, inv_freq))
np.testing.assert_allclose(here, moved, atol=1e-4 * np.linalg.norm(a) * np.linalg.norm(b))

# %%     sdpa, pattern @ k_rotated_head0, q_rotated_head0, k_rotated_head0, v_head0, is_causal=True
assert not report
assert report.diagnosis

# %% def split_heads(x):
np.testing.assert_allclose(z[0], z_head0, atol=1e-6)

# %% pattern_16 = bfloat16(all_patterns).astype(np.float32)
assert off_16 > 100 * off_32
assert loss(pattern_16 @ values, exact) > 100 * loss(z, exact)

# %% tokenizer = sf.tokenizer.load(FOLDER / "tokenizer.model")
assert shown.count("True") == 10
assert "False" not in shown

# %% candidates = [FOLDER / "tokenizer.model", Path("../../shared/data/llama3/tokenizer.model")]
if of_meta is not None:
    assert found[:9] == [128000, 1820, 4320, 311, 279, 17139, 3488, 315, 2324]
    assert found[9:] == [11, 279, 15861, 11, 323, 4395, 374, 220]
    assert hello == [15339, 1917, 0]
    assert meta[b"42"] == 2983

# %% def classic_ffn(x, w_in, b_in, w_out, b_out):
assert (inside == 0).mean() == 0
assert 0.3 < (wide < 0).mean() < 0.7
