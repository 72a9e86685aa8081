"""On every rank: models of random weights, in parts and alone in the same process; what they give
must be the same. Prints a line for each that is."""

import sys
from functools import partial

import numpy as np
from mpi4py import MPI

import simdformer as sf
from checkpoints import GEMMA, GPT2, OLMO2, random_weights, tiny_config
from simdformer.models import Transformer, trace_names
from simdformer.parallel import communicator_of

IDS = np.array([7, 0, 299, 12, 12, 45, 101, 250, 3, 77, 5, 64, 128])
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3, "expert_intermediate_size": 20}
SHARED = {"shared_intermediate_size": 18, "shared_router": True}
GPT_OSS = {
    "attention_sinks": True,
    "qkv_bias": True,
    "wo_bias": True,
    "mlp_bias": True,
    "activation": "clamped_swiglu",
    "sliding_window": (4, None, 4),
    "tie_embeddings": False,
}
MODELS = {
    "llama": {},
    "untied, uneven": {"num_heads": 14, "num_kv_heads": 7, "tie_embeddings": False},
    "keys and values repeated": {"num_heads": 8, "num_kv_heads": 2, "qk_norm": True},
    "one key and value head": {"num_kv_heads": 1, "vocab_size": 301, "intermediate_size": 47},
    "gemma": GEMMA,
    "olmo2": OLMO2 | {"num_kv_heads": 1},
    "gpt2": GPT2,
    "experts": EXPERTS | SHARED | {"expert_layers": (True, False, True)},
    "experts with biases": EXPERTS | GPT_OSS,
    "few bits": {"num_heads": 16, "intermediate_size": 160},
    "experts in few bits": EXPERTS | {"expert_intermediate_size": 32, "num_heads": 16} | GPT_OSS,
}
TYPES = {"few bits": "q8_0", "experts in few bits": "mxfp4"}


def close(found, needed, tolerance=1e-5):
    """Relative to the largest."""
    found, needed = np.asarray(found, np.float64), np.asarray(needed, np.float64)
    assert found.shape == needed.shape, (found.shape, needed.shape)
    finite = np.isfinite(needed)
    assert (finite == np.isfinite(found)).all()
    found, needed = found[finite], needed[finite]
    error = np.abs(found - needed).max(initial=0) / max(np.abs(needed).max(initial=0), 1e-9)
    assert error < tolerance, error


def both(name, communicator):
    config = tiny_config(**MODELS[name])
    weights = random_weights(np.random.default_rng(5), config)
    if type := TYPES.get(name):
        for tensor, weight in weights.items():
            if weight.ndim == 2 and "router" not in tensor:
                weights[tensor] = sf.quantize(weight, type)
    # The other arithmetic rounds activations, which differ in their last bits.
    made = partial(Transformer, config, weights, arithmetic="float32")
    return made(), made(communicator=communicator)


def logits(alone, parts):
    needed, found = alone(IDS), parts(IDS)
    close(found, needed)
    assert parts(IDS).tobytes() == found.tobytes()
    first = parts.ranks.communicator.broadcast(lambda: found.tobytes())
    assert found.tobytes() == first  # the same bits on all ranks
    caches = alone.new_cache(40), parts.new_cache(40)
    for start, stop in ((0, 6), (6, 7), (7, 13)):
        close(parts(IDS[start:stop], caches[1]), alone(IDS[start:stop], caches[0]))
    close(parts(np.stack([IDS, IDS[::-1]])), alone(np.stack([IDS, IDS[::-1]])))


def activations(alone, parts):
    names = trace_names(alone.config, on_request=True)
    needed = alone.run_with_cache(IDS, names)[1]
    found = parts.run_with_cache(IDS, names)[1]
    assert list(found) == list(needed)
    for name in names:
        if name.endswith("mlp.experts"):
            assert (found[name] == needed[name]).all()
        else:
            close(found[name], needed[name])


def edits(alone, parts):
    for name in trace_names(alone.config, on_request=True):
        if name.endswith("mlp.experts"):
            edit = {name: lambda x: x[..., ::-1].copy()}
        else:
            edit = {name: lambda x: x * np.float32(1.25)}
        close(parts(IDS, edit=edit), alone(IDS, edit=edit), 2e-5)


def main(*names):
    communicator = communicator_of(MPI.COMM_WORLD)
    for name in names or MODELS:
        models = both(name, communicator)
        for compared in (logits, activations, edits):
            compared(*models)
        if communicator.rank == 0:
            print(name, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
