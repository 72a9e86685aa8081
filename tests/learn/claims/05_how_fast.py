import operator
import re
from math import prod

# %% class Counted:
assert Counted.flops == work.flops == 2 * M * I * O
assert work.nbytes == x.nbytes + weight.nbytes + mine.nbytes

# %% print("tokens |      FLOP |     bytes | FLOP per byte")
one, many = bench.Linear(rows=1), bench.Linear(rows=512)
assert many.flops == 512 * one.flops
assert many.nbytes < 1.2 * one.nbytes
assert one.intensity < 0.5 < 200 < many.intensity

# %% heads = {"K = H (no sharing)": 32, "K = H/4": 8, "K = H/8": 4, "K = 1 (one for all)": 1}
assert alone.flops == shared.flops
assert 3.9 < shared.intensity / alone.intensity < 4
assert half.flops == 32 * pairs * 2 * 2 * 128  # q kᵀ and weights · v, 2 FLOP a number each

# %% print("                 read per token |  at 20 GB/s |  at 40 GB/s | at 100 GB/s")
small = bench.SHAPES["Qwen3-0.6B"]
matrices = [shape for shape in sf.models.weight_shapes(small).values() if len(shape) == 2]
cache_entry = 2 * small.num_layers * small.num_kv_heads * small.head_dim * 2  # k and v, 2 bytes
one_id = bench.ModelRun(config=small, new=1)
assert one_id.nbytes == 2 * sum(map(prod, matrices)) + cache_entry

# %% gate, up = random(2048, 11008), random(2048, 11008)
assert pages == 22016
assert returned is out
assert np.array_equal(out, sf.swiglu(gate, up))  # the same bits
assert np.array_equal(sf.swiglu(overwritten, up, out=overwritten), out)  # even onto its own input

# %% print("tokens |   q, k, v and output | scores of 32 heads")
assert scores == 128 * 2**30  # 128 GiB, for one layer

# %% q, k, v = random(8, 300, 64), random(8, 300, 64), random(8, 300, 64)
assert len(digests) == 1

# %% x, weight = random(1, 4096), random(256, 4096) / 64
assert narrow["bfloat16"].nbytes * 2 == weight.nbytes

# %% packed = {name: sf.pack(w) for name, w in narrow.items()}
assert np.array_equal(together, alone)

# %% attention = sf.scaled_dot_product_attention
errors = [float(part) for part in re.findall(r"\de-\d\d", shown)]
assert len(errors) == 8
assert max(errors) < 1e-6

# %% narrow = {name: weight.astype(name) for name in ("float32", "float16", "bfloat16")}
errors = [float(part) for part in re.findall(r"\de-\d\d", shown)]
assert all(map(operator.lt, errors, (1e-6, 1e-3, 5e-3)))

# %% packed = {name: sf.pack(w) for name, w in narrow.items()}
assert all(packed[name].unpack().tobytes() == w.tobytes() for name, w in narrow.items())
