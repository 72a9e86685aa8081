import numpy as np

# %% trainable = TrainableModel.from_pretrained(sf.demo_path())
assert abs(slope(1e-3, np.float64) - gradients["lm_head"][row, column]) < 1e-5

# %% exponents = np.arange(-10.0, 0.5, 0.5)
assert curves["float64"].max() > 7
assert curves["float32"].max() < 6
assert curves["float32"][0] < 1  # too small an h
assert curves["float64"][-1] < 1  # too large

# %% p = sf.softmax(random(3, 7))
assert shown.count("right?!") == 1

# %% def cross_entropy_backward(z, labels):
assert np.abs(dz.sum(-1)).max() < 1e-6
assert shown.count("→") == 5
assert "right?!" not in shown

# %% def linear_backward(dy, x, w):
assert abs((x * dx).sum() - (w * dw).sum()) < 1e-3
assert "right?!" not in shown

# %% def rms_norm_backward(dy, x, w, eps):
assert np.abs((x * dx).sum(-1)).max() < 1e-4
assert "right?!" not in shown

# %% def swiglu_backward(dy, gate, up):
assert np.allclose(up * dup, dy * gate * s * up)
assert "right?!" not in shown

# %% def attention_back(do, q, k, v, scale):
assert np.allclose(dk.sum(1), 0, atol=1e-4)
assert np.allclose(dv.sum(1), do.reshape(2, 3, 5, 8).sum((1, 2)), atol=1e-4)
assert "right?!" not in shown

# %% delta = (do * out).sum(-1)
assert len({line.partition(":")[2] for line in shown.splitlines()}) == 1

# %% def by_hand(weights, ids, labels, others=()):
assert report.ok
assert sum(g.size for g in mine.values()) == sum(w.size for w in weights.values())

# %% def constant_r(dy, x, w, eps):
assert [line.partition(" ")[0] for line in shown.splitlines() if line.startswith("layers")] == [
    "layers.4.wo", "layers.3.gate", "layers.1.wk",
]  # fmt: skip
assert [one.name for one in report.diagnosis] == ["attention_backward.scale_missing_in_key"]

# %% _, unshifted = by_hand(weights, ids, ids)
assert [one.name for one in report.diagnosis] == ["gradients.accumulated"]

# %% def step(weights, ids, labels, lr=1e-3, weight_decay=0.1):
assert report.first_wrong == "clipping"

# %% def by_tape(weights, ids, labels):
assert abs(loss_of_tape.data.item() - value) < 1e-5

# %% added = at
assert not report.ok
assert report.diagnosis
