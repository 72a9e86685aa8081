"""On every rank: what the demonstration's model says, is asked and reads, beside the same alone."""

from itertools import count

import numpy as np
import pytest
from mpi4py import MPI

import simdformer as sf

PROMPTS = ["Once upon a time", "Tom", "Mia has a red kite. Tom has", "The big dog"]
SAMPLED = {"temperature": 0.9, "top_p": 0.95, "max_new_tokens": 24}


def main():
    comm = MPI.COMM_WORLD
    alone = sf.from_pretrained(sf.demo_path())
    model = sf.from_pretrained(sf.demo_path(), comm=comm)
    for options in (
        {"max_new_tokens": 24},
        SAMPLED | {"seed": 3},
        SAMPLED | {"seed": [5, 6, 7, 8]},
    ):
        needed = alone.generate(PROMPTS, **options)
        assert model.generate(PROMPTS, max_batch=3, **options) == needed
    drafted = model.generate(PROMPTS[0] * 3, max_new_tokens=24, draft="prompt")
    assert drafted == alone.generate(PROMPTS[0] * 3, max_new_tokens=24)
    drafted = model.generate(PROMPTS[0], max_new_tokens=12, draft=alone)
    assert drafted == alone.generate(PROMPTS[0], max_new_tokens=12)

    # Without a seed rank 0 throws the dice, and alone it streams.
    pieces = []
    text = model.generate("Tom", streamer=pieces.append, **SAMPLED)
    assert set(comm.allgather(text)) == {text}
    assert "".join(pieces) == (text if comm.rank == 0 else "")

    # The memory of a cache is that of the rank that has room for the fewest pages.
    cache = model.new_cache(memory=500_000)
    assert len(set(comm.allgather(cache.pages.max_pages))) == 1
    assert model.generate(PROMPTS, 24, cache_memory=2_000_000) == alone.generate(PROMPTS, 24)

    # An edit is made by rank 0, whatever the others would.
    calls = count(comm.rank)
    noise = {"layers.1.mlp.act": lambda x: x * (1 + next(calls))}
    assert len({logits.tobytes() for logits in comm.allgather(model("Tom", edit=noise))}) == 1

    losses = model.loss("Mia has a red kite."), alone.loss("Mia has a red kite.")
    assert np.abs(losses[0] - losses[1]).max() < 1e-5
    said = [{"role": "user", "content": "hello"}]
    assert model.chat(said, 9) == alone.chat(said, 9)
    batches = [one.batch(max_batch=2) for one in (model, alone)]
    numbers = [[batch.add(text, 8) for text in PROMPTS] for batch in batches]
    assert numbers[0] == numbers[1]
    while batches[1].unfinished:
        assert batches[0].step() == batches[1].step()

    for needs_all in (
        lambda: sf.attribute(model, "Tom has", " a"),
        lambda: sf.check_trace({"embed": np.zeros((1, 64), np.float32)}, model, [1]),
    ):
        with pytest.raises(ValueError, match=f"found a model that {comm.size} ranks hold together"):
            needs_all()
    if comm.rank == 0:
        print("the same")


if __name__ == "__main__":
    main()
