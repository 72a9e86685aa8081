import re

import pytest

# %% def weight_as_in_the_guide(name):
assert not first
assert first.diagnosis

# %% def weight_half_mended(name):
assert not second
assert second.diagnosis

# %% print(PROMPT + decode([next_id]))
assert decode([next_id]) == "42"
assert [next_id] == encode("42")[1:]

# %% in_16_bits = sf.from_pretrained(FOLDER, activations="bfloat16")(ids)
assert loss(logits, np.float64(model(ids))) < 1e-4 < loss(in_16_bits, np.float64(model(ids)))

# %% unmasked, _ = forward(ids, causal=False)
assert not np.allclose(unmasked[-1], logits[-1], atol=0.1)
assert not report

# %% def step(id, position, cache):
np.testing.assert_allclose(one_by_one, logits, rtol=1e-3, atol=1e-3 * np.abs(logits).max())
np.testing.assert_allclose(
    cache[-1][0].swapaxes(0, 1), trace[f"layers.{layers - 1}.attn.k_rot"], rtol=1e-3, atol=1e-3
)

# %% kv_cache = model.new_cache(max_seq_len=L + 1)
np.testing.assert_allclose(read, logits, rtol=1e-3, atol=1e-3 * np.abs(logits).max())
np.testing.assert_allclose(
    more[0], step(next_id, L, cache), rtol=1e-3, atol=1e-3 * np.abs(logits).max()
)

# %% new_key = trace["layers.0.attn.k"].swapaxes(0, 1)[:, -1:]
assert not report
assert report.diagnosis

# %% print(model)
assert model.generate(PROMPT, max_new_tokens=1) == decode([next_id])
np.testing.assert_allclose(model(ids), logits, rtol=1e-3, atol=1e-3 * np.abs(logits).max())

# %% text = "Once upon a time there was a small fox named Ada."
assert losses.mean() < np.log(V) / 2

# %% START = "Once upon a time there was"
assert "the answer, and where it ends: 42" in shown

# %% def header(role):
assert dialog[0] == BEGIN
assert dialog[-1] == encode("\n\n")[-1]
assert dialog.count(special["<|eot_id|>"]) == 2
assert special["<|eot_id|>"] not in typed

# %% short, long = encode("Ada has a"), encode("Once upon a time there was a")
assert behind < 1e-4
assert in_front > 1e-2

# %% def sure_of(answer):
assert [float(part) > 80 for part in re.findall(r"([\d.]+)% sure", shown)] == [True, True]
assert by_hand == pytest.approx(lost[0, 0], abs=1e-6)

# %% layer, head = np.unravel_index(lost.argmax(), lost.shape)
assert f"layer {layer}, head {head}" in shown
