"""llama.cpp beside us on the same GGUF file, of every type that weights are read in: the same ids,
and logits that are a hundred times as near to float64.

llama-cpp-python is compiled for each machine, and rarely there.
"""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

import gguf_files
import simdformer as sf
import tiny_models
from simdformer.bench import llama_cpp
from simdformer.quantization.types import quantization_types

missing = llama_cpp.missing()
pytestmark = pytest.mark.skipif(missing is not None, reason=missing.why if missing else "")

# Architectures, and what llama.cpp takes for granted in them.
SAME_THETA = {"full_attention": tiny_models.YARN, "sliding_attention": {"rope_theta": 1e4}}
ARCHITECTURES = {
    "llama3.1": {},
    "qwen2-tied-yarn": {},
    "qwen3": {},
    "granite": {},
    "smollm3": {"no_rope_layer_interval": 4, "num_hidden_layers": 5},
    "olmo2": {},
    "olmo3": {"rope_parameters": SAME_THETA},
    "gemma2": {"query_pre_attn_scalar": 12},
    "gemma3": {"query_pre_attn_scalar": 12, "num_hidden_layers": 7, "layer_types": None},
    "phi3": {},
    "gpt2": {},
}
WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "head_dim": 64}
IDS = np.random.default_rng(2).integers(0, 96, 48)
# Where the scales of a block of the types lie that nobody here writes: byte, and how large beside
# each other, so that the values have a mean near 0.
SCALES = {
    "q2_k": {80: 1.0, 82: 1.5},
    "q3_k": {108: 1.0},
    "iq4_nl": {0: 1.0},
    "iq4_xs": {0: 1.0},
}


def blocks_like(values, name, rng):
    """Blocks of a type: those nearest to the values, or random ones as large as they are."""
    kind = quantization_types()[name]
    if kind.writable:
        return sf.quantize(values, name).blocks()
    count = values.size // kind.block
    blocks = rng.integers(0, 256, (count, kind.nbytes), dtype=np.uint8)
    size = 1.0
    for _ in range(2):
        for at, factor in SCALES[name].items():
            blocks[:, at : at + 2] = np.array([size * factor], "<f2").view(np.uint8)
        found = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[name.upper()])
        size *= np.std(values) / np.std(found)
    return blocks.reshape(len(values), -1)


FLOATS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


@pytest.fixture(params=(*FLOATS, *quantization_types()))
def both(request, rng, tmp_path):
    """The file of a small Qwen3 whose matrices are of one type, and transformers' model of its
    values in float64."""
    model = tiny_models.make("qwen3", **WIDE)
    if request.param in FLOATS:
        dtype, path = FLOATS[request.param], tmp_path / "model.gguf"
        gguf_files.write_model(path, tiny_models.rounded(model, dtype), dtype)
        return path, model.double()
    kind = gguf.GGMLQuantizationType[request.param.upper()]
    path, state = tmp_path / "model.gguf", model.state_dict()
    writer = gguf.GGUFWriter(path, "qwen3")
    gguf_files.describe(writer, model.config)
    stored = gguf_files.converted(model)
    for original, (tensor, values) in zip(state, stored.items(), strict=True):
        if values.ndim == 1:
            writer.add_tensor(tensor, values.numpy())
            continue
        blocks = blocks_like(values.numpy(), request.param, rng)
        writer.add_tensor(tensor, blocks, raw_dtype=kind)
        state[original].copy_(torch.from_numpy(gguf.quants.dequantize(blocks, kind)))
    gguf_files.close(writer)
    return path, model.double()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_architecture_is_what_llama_cpp_takes_it_for(name, tmp_path):
    path = tmp_path / "model.gguf"
    gguf_files.write_model(path, tiny_models.make(name, **ARCHITECTURES[name]))
    context = llama_cpp.Context(llama_cpp.Model(path, 96), len(IDS), 2, flash=False)
    theirs = np.stack([context.logits(IDS[at : at + 1], at) for at in range(len(IDS))])
    assert relative_error(theirs, sf.from_pretrained(path)(IDS)) < 0.01  # its cache has 16 bits


def relative_error(found, exact):
    return np.sqrt(np.mean((found - exact) ** 2) / np.mean(exact**2))


def in_the_table(type):
    """What docs/benchmarks.md says: our error and llama.cpp's."""
    page = (Path(__file__).parents[2] / "docs" / "benchmarks.md").read_text()
    _, _, section = page.partition("## Quantised models: errors")
    rows = (line.strip("| ").split(" | ") for line in section.splitlines())
    return next([float(cell) for cell in row[1:3]] for row in rows if row[0] == type)


def test_the_error_is_at_most_a_hundredth_of_that_of_llama_cpp(both, request):
    path, exact = both
    needed = tiny_models.logits(exact, IDS)[0]
    context = llama_cpp.Context(llama_cpp.Model(path, 96), len(IDS), 2)
    theirs = np.stack([context.logits(IDS[at : at + 1], at) for at in range(len(IDS))])
    ours = sf.from_pretrained(path)(IDS)
    mine, other = relative_error(ours, needed), relative_error(theirs, needed)
    assert mine < other / 100
    assert other < 0.05
    type = request.node.callspec.params["both"]
    print(f"| {type} | {mine:.1e} | {other:.1e} | {other / mine:.0f} |")
    for found, written in zip((mine, other), in_the_table(type), strict=True):
        assert written / 2 < found < 2 * written


def test_greedy_ids_are_those_of_llama_cpp(both, rng):
    """Of the prompts behind which the best id is well ahead at every step."""
    path, _ = both
    ours = sf.from_pretrained(path)
    prompts = rng.integers(0, 96, (100, 5))
    said = np.array(ours.generate(prompts, max_new_tokens=6))
    logits = ours(np.hstack([prompts, said])[:, :-1])[:, 4:]
    second, first = np.sort(logits, -1)[..., -2:].transpose(2, 0, 1)
    sure = np.flatnonzero((first - second > 0.15 * logits.std(-1)).all(1))
    assert len(sure) >= 3
    context = llama_cpp.Context(llama_cpp.Model(path, 96), 11, 2)
    for row in sure:
        ids = [int(context.logits(prompts[row]).argmax())]
        for at in range(5, 10):
            ids.append(int(context.logits(np.array(ids[-1:]), at).argmax()))
        assert ids == said[row].tolist()
