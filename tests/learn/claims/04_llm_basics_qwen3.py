import re
from math import prod

# %% text = "The cat sat on the mat. The cat was not hungry, so it sat there all day."
assert tokenizer.decode(ids) == text
assert len(text.split()) <= len(ids) < len(text)

# %% umbrella = tokenizer.encode("I ☂ UTF-8", bos=False)
assert one_by_one != streamed == "I ☂ UTF-8"

# %% embedding_8b = QWEN3_8B.vocab_size * QWEN3_8B.hidden_size
assert round(embedding_8b / 1e6) == 622  # as the text says

# %% report = sf.check(sf.embedding, table[(ids + 1) % V], ids, table)
assert report.diagnosis[0].name == "embedding.ids_plus_one"

# %% loud = random(E).astype(np.float16)
assert (as_in_the_text == 0).all()
assert report.diagnosis[0].name == "rms_norm.squares_overflow"

# %% square, rows = random(E, E) / sqrt(E), random(6, E)
assert report.diagnosis[0].name == "linear.not_transposed"

# %% multiply_adds = QWEN3_8B.hidden_size * QWEN3_8B.num_heads * QWEN3_8B.head_dim
assert multiply_adds == 4096 * 4096 == 16_777_216

# %% for name, kv_heads in (("MHA", 32), ("GQA", 8), ("MQA", 1)):
assert 2 * 36 * 8 * 128 * 2 == 144 * 1024

# %% q_norm, k_norm = weight("layers.0.q_norm"), weight("layers.0.k_norm")
assert np.allclose(trace["layers.0.attn.q_normed"].swapaxes(0, 1), q_normed, atol=1e-3)
assert not report.ok

# %% inv_freq = config.rope_theta ** (-np.arange(0, D, 2) / D)
assert np.allclose(inv_freq, sf.rope_frequencies(D, theta=config.rope_theta).inv_freq)

# %% one_q, one_k = random(1, D), random(1, D)
assert np.isclose(score(5, 2), score(105, 102), atol=1e-3)
assert np.isclose(score(5, 2), score(1005, 1002), atol=1e-2)
assert not np.isclose(score(5, 2), score(5, 3), atol=1e-2)

# %% for s in (2, 4, 8):
assert all(not np.isclose(1e4 * s ** (128 / 126), 1e6, rtol=0.1) for s in (2, 4, 8, 16, 32, 64))

# %% z = np.array([2.0, 1.0, 0.1])
assert np.allclose(softmax(z), [0.66, 0.24, 0.10], atol=5e-3)  # as the text says

# %% z = np.array([2.0, 1.0, 0.0])
assert np.allclose(softmax(z / 0.5), [0.867, 0.117, 0.016], atol=5e-4)
assert report.diagnosis[0].name == "softmax.temperature_inverted"

# %% large = np.array([1000.0, 1000.1, 1000.2])
assert not report.ok
assert np.allclose(softmax(large), [0.3006, 0.3322, 0.3672], atol=5e-5)
assert np.allclose(softmax(np.arange(3.0)), said_large, atol=1e-3)
assert shown.count("are 2.34 : 1") == 3

# %% queries, keys = random(2000, 128), random(2000, 128)
assert 110 < dots.var() < 146
assert 0.04 < beyond < 0.12

# %% L = len(ids)
assert np.array_equal(mask, sf.causal_mask(L, L, dtype=np.float32))

# %% words = ["The", "cat", "sat", "on", "the", "mat"]
assert np.allclose(pictured.sum(-1), 1)
assert not report.ok
assert (np.triu(causal, k=1) == 0).all()

# %% sentence = "The cat sat on the mat."
assert np.allclose(patterns.sum(-1), 1, atol=1e-5)
assert (np.triu(patterns, k=1) == 0).all()  # nobody looks ahead

# %% swapped = (silu(mlp_norm @ up.T) * (mlp_norm @ gate.T)) @ down.T
assert report.diagnosis[0].name == "swiglu.gate_and_up_swapped"

# %% mlp_8b = 3 * QWEN3_8B.hidden_size * QWEN3_8B.intermediate_size
assert mlp_8b == 150_994_944
assert round(3 * 4096 * 14336 / 1e6) == 176

# %% report = sf.check_trace(forward(ids, qk_norm=False), model, ids)
assert not report.ok

# %% def parallel_layer(x, layer, note):
assert not report.ok

# %% c = QWEN3_8B
assert attention_8b == 41_943_040  # the text's 42M
assert one_layer == 192_946_432

# %% total = c.num_layers * one_layer + c.hidden_size + 2 * c.vocab_size * c.hidden_size
assert total == 8_190_735_360
assert total - 2 * embedding_8b == 6_946_075_648
assert total == sum(prod(shape) for shape in weight_shapes(c).values())

# %% from simdformer.models.budget import cache_bytes, parameter_budget
assert sum(budget.values()) == total
assert budget["mlp"] == c.num_layers * mlp_8b
assert budget["attention"] == c.num_layers * attention_8b
assert 0.6 < budget["mlp"] / total < 0.7  # "60 to 70%", as the text says

# %% logits = model(ids)
assert np.abs(logits - mine["logits"]).max() < 1e-2 * np.abs(logits).max()
assert (logits.argmax(-1) == mine["logits"].argmax(-1)).mean() > 0.9

# %% def encode_word(word):
assert shown.count("as the tokenizer has it") == 5

# %% for theta in (1e4, 1e6):
for theta, right in ((1e4, [1, 0.866, 0.750]), (1e6, [1, 0.806, 0.649])):
    first = sf.rope_frequencies(128, theta=theta).inv_freq[:3]
    assert np.allclose(first, right, atol=5e-4)
    assert not np.allclose(first, [1.0, 0.93, 0.87], atol=5e-3)

# %% story = demo.tokenizer.encode(
ends = [tuple(map(float, pair)) for pair in re.findall(r"back ([\d.]+) to ([\d.]+) tokens", shown)]
means = [sum(pair) / 2 for pair in ends]
assert ends[2][1] < min(near for near, _ in ends[:2] + ends[3:])
assert max(far for _, far in ends) == ends[3][1]
assert 0 < ends[5][1] < ends[0][0]

# %% for n, said in ((1024, "1M"), (4096, "16M"), (32768, "1B"), (131072, "16B")):
for n, said in ((1024, "1M"), (4096, "16M"), (32768, "1B"), (131072, "16B")):
    assert n * n == float(said[:-1]) * {"M": 2**20, "B": 2**30}[said[-1]]

# %% rows = [f"| {what} | {said} | {computed} |" for what, said, computed in errata]
assert len(errata) == 20
assert all(str(said) != str(computed) for _, said, computed in errata)
assert not sf.check(sf.softmax, [0.42, 0.03, 0.29, 0.26], z3, rtol=0.02).ok
assert np.allclose(softmax(z3), [0.557, 0.041, 0.250, 0.152], atol=5e-4)
for temperature, said, ok in ((1, [0.67, 0.24, 0.09], 1), (0.5, [0.84, 0.11, 0.04], 0)):
    assert sf.check(sf.softmax, said, z2, temperature=temperature, rtol=0.02).ok == ok

# %% def kept(logits, temperature=1.0, top_k=None, top_p=None):
counts = [int(number) for number in re.findall(r"(\d+) words left", shown)]
assert counts[1] == 3
assert counts[0] > counts[3] > counts[2]
assert max(apart) < 1e-12
