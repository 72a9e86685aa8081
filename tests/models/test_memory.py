"""What a model takes in memory once it is loaded, and on the way there: its weights once, and
little besides. Measured in a process of its own, as the system counts it."""

import json

import numpy as np
import pytest

from checkpoints import tiny_config
from simdformer.checkpoints.gguf_architectures import ARCHITECTURES
from simdformer.checkpoints.gguf_keys import keys_of
from simdformer.checkpoints.gguf_writer import NewTensor, write_gguf
from simdformer.models import weight_shapes
from subprocesses import run_python

MB = 1e6
CONFIG = tiny_config(
    hidden_size=1024,
    num_layers=4,
    num_heads=16,
    num_kv_heads=8,
    head_dim=64,
    intermediate_size=4096,
    vocab_size=50_000,
    max_seq_len=128,
    norm_eps=1e-6,
)
IN_MEMORY = """
    def in_memory(name):
        "VmRSS, now, or VmHWM, the most so far (of this process alone)."
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith(name)) * 1024
"""
LOAD = (
    IN_MEMORY
    + """
    import json
    from simdformer.checkpoints import read_checkpoint
    from simdformer.models.budget import weight_bytes

    before = in_memory("VmRSS")
    model = sf.from_pretrained({path!r}, dtype={dtype!r})
    print(json.dumps([
        weight_bytes(model.config, read_checkpoint({path!r}).weights, {itemsize}),
        in_memory("VmRSS") - before,
        in_memory("VmHWM") - before,
    ]))
"""
)
FILL = (
    IN_MEMORY
    + """
    import json
    from simdformer.models import KVCache

    cache = KVCache(num_layers=4, num_kv_heads=8, head_dim=64, max_seq_len=32768)
    new, before = np.ones((1, 8, 3, 64), np.float32), in_memory("VmRSS")
    for layer in range(4):
        cache.write(layer, new, new)
    print(json.dumps([cache.nbytes, in_memory("VmRSS") - before]))
"""
)


def write(path, type):
    """A model of 80 million parameters whose matrices are of a type and say nothing."""
    names, tensors = ARCHITECTURES["llama"].names("llama"), []
    for ours, shape in weight_shapes(CONFIG).items():
        kind = "f32" if len(shape) == 1 else type
        tensor = NewTensor(names.theirs(ours), shape, kind, lambda: iter(()))
        rows = np.full((16, tensor.nbytes // shape[0]), 0x18, np.uint8)
        pieces = [np.ones(shape, np.float32)] if kind == "f32" else [rows] * (shape[0] // 16)
        tensors.append(NewTensor(tensor.name, shape, kind, lambda pieces=pieces: iter(pieces)))
    keys = {"general.architecture": "llama"} | keys_of("llama", CONFIG)
    return write_gguf(path, keys, tensors)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("type", "dtype", "bits"),
    [("f16", None, 16), ("q8_0", None, 8.5), ("q4_k", None, 4.625), ("f16", "float32", 32)],
)
def test_weights_lie_in_memory_once_and_little_besides(type, dtype, bits, tmp_path):
    path = tmp_path / "model.gguf"
    write(path, type)
    printed = run_python(LOAD.format(path=str(path), dtype=dtype, itemsize=4 if dtype else None))
    weights, resident, peak = json.loads(printed)
    parameters = sum(int(np.prod(shape)) for shape in weight_shapes(CONFIG).values())
    assert weights == pytest.approx(parameters * bits / 8, rel=0.01)
    for found in (resident, peak):
        assert found < 1.05 * weights + 60 * MB, f"{found / MB:.0f} of {weights / MB:.0f} MB"


def test_a_cache_takes_memory_as_it_is_filled():
    """A short text in a cache for a long one: no pages of 2 MB for each head of each layer."""
    found = json.loads(run_python(FILL))
    assert found[0] == 4 * 2 * 8 * 32768 * 64 * 4
    assert found[1] < 4 * MB  # 64 streams of 768 bytes
