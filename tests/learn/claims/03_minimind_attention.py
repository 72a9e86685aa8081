from simdformer.models.budget import parameter_budget

# %% inv_freq = theta ** (-np.arange(0, D, 2) / D)  # one speed a pair
assert np.allclose(np.abs(freqs_cis), 1)
assert np.allclose(inv_freq, sf.rope_frequencies(D, theta=theta).inv_freq)

# %% few = np.ascontiguousarray(xq[:, :H])  # as many tokens as heads
assert report.diagnosis[0].name == "rope.positions_over_heads"

# %% from_one = apply_rotary_emb(xq, freqs_cis[pos_ids + 1])
assert report.diagnosis[0].name == "rope.positions_from_one"

# %% tiled = np.tile(k, (1, 1, n_rep, 1))
assert report.diagnosis[0].name == "repeat_kv.heads_tiled"

# %% def softmax(x, axis=-1):
assert np.array_equal(mask, sf.causal_mask(S, S, dtype=np.float32))
assert np.allclose(attn_weights.sum(-1), 1, atol=1e-6)

# %% back = z.swapaxes(1, 2)
assert np.shares_memory(z, back)
assert not back.flags.c_contiguous
assert not np.shares_memory(z, merged)

# %% def split_heads(x, heads):
assert np.allclose(attention(x), output, atol=1e-5)

# %% each_nth = attention(x, split=lambda y, heads: y.reshape(*y.shape[:-1], D, heads).swapaxes(-1, -2))
assert report.diagnosis[0].name == "split_heads.as_d_h"

# %% not_turned_back = attention(x, merge=lambda z: z.reshape(B, S, H * D))
assert report.diagnosis[0].name == "merge_heads.no_transpose"

# %% def entropy(p):
assert np.ptp(with_scale) < 0.3  # the same for every D
assert (np.diff(without) < 0).all()  # always narrower
assert without[-1] < 0.3 < 3 < with_scale[-1]

# %% no_scale = softmax(scores * sqrt(D) + mask)
assert sure < unsure
assert report.diagnosis[0].name == "attention.no_scale"

# %% last_q, past = q[:, :, -1:], S - 1
assert report.diagnosis[0].name == "attention.no_causal_offset"

# %% fresh = xq[:, -2:]  # the two newest tokens, at positions S-2 and S-1
assert report.diagnosis[0].name == "rope.positions_restarted"

# %% lengths = np.array([16, 64, 256, 1024, 4096])
assert (without_cache == lengths * with_cache).all()

# %% def rotate_half(x):
assert report.diagnosis[0].name == "rope.layout_swapped"

# %% later = ModelConfig(
assert total == 63_912_192 == sum(parameter_budget(later).values())

# %% report = sf.check_trace(forward(ids, qk_norm=False), model, ids)
assert report.ok == (not config.qk_norm)  # the first MiniMinds have no such norms

# %%     "rope_type": "yarn",
assert np.isclose(after[0], before[0])
assert np.isclose(after[-1], before[-1] / 16)

# %%     from transformers import Qwen3Config, Qwen3ForCausalLM
if "qwen3" in globals():
    assert not missing.unexpected_keys
    assert set(missing.missing_keys) <= {"lm_head.weight"}  # the tied one
    assert qwen3.num_parameters() == sum(parameter_budget(config).values())
    for own in (mine["logits"], model(ids)):
        assert np.abs(own - logits).max() < 1e-3 * np.abs(logits).max()
        assert (own.argmax(-1) == logits.argmax(-1)).mean() > 0.9

# %% spoilt = puzzle.replace("blue", "green")
assert at == (3, 0)
assert most == (3, 2)
assert 0.05 < back[at] < back[most] < 0.25
