# %% large = np.array([1000.0, 1000.1, 1000.2], np.float32)
assert np.isnan(broken).all()
assert report.diagnosis[0].name == "softmax.no_shift"

# %% print("rows of softmax(axis=-1) sum to", softmax(table).sum(-1).round(4))
assert not np.allclose(softmax(table, axis=0).sum(-1), 1)
assert report.diagnosis[0].name == "softmax.another_axis"

# %% q, k, v = random(2, 4, 4), random(2, 4, 4), random(2, 4, 4)
assert report.diagnosis[0].name == "attention.all_axes_transposed"

# %% L, D = 7, 16
assert np.array_equal(boolean, sf.causal_mask(L, L))
assert np.array_equal(additive, sf.causal_mask(L, L, dtype=np.float32))

# %% late = softmax(raw) * boolean
assert report.diagnosis[0].name == "attention.mask_after_softmax"

# %% dead = boolean.copy()
assert (heard[2] == 0).all()
assert report.diagnosis[0].name == "attention.nan_where_nothing_is_seen"

# %% q, k, v = random(2, 6, 8), random(2, 6, 8), random(2, 6, 8)
assert report.diagnosis[0].name == "attention.scale_or_default"

# %% x = random(1_000_000)
assert error_divide.max() <= 0.5001 < error_multiply.max()

# %% square = random(10, 10)
assert report.diagnosis[0].name == "linear.not_transposed"

# %% tiny = np.arange(2 * 6).reshape(1, 2, 6)
assert report.diagnosis[0].name == "split_heads.without_transpose"

# %% class WrongScale(SimpleMultiHeadAttention):
assert report.diagnosis[0].name == "attention.scale_by_hidden_size"

# %% import torch
assert apart < 1e-5

# %% for D_ in (4, 16, 64, 256, 1024):
rows = [[float(part) for part in line.split("|")] for line in shown.splitlines()[1:]]
assert len(rows) == 5
for width, before, after, sharp, soft in rows:
    assert abs(before / width - 1) < 0.25
    assert 0.75 < after < 1.25
    assert sharp > soft
