"""On every rank: a small model is measured, and a plan made of it. Prints what rank 0 is told."""

from checkpoints import tiny_config
from simdformer.bench import measure_over_ranks, rates
from simdformer.parallel import world


def main():
    rates.LARGEST = 1 << 20  # what is measured stays in the caches, and is soon done
    ranks = world()
    sizes = {"hidden_size": 64, "head_dim": 16, "intermediate_size": 128, "max_seq_len": 600}
    found = measure_over_ranks(ranks, "tiny", tiny_config(**sizes))
    assert found.token > 0 < found.prompt
    assert found.planned.ranks == ranks.size
    if ranks.rank == 0:
        print(found)


if __name__ == "__main__":
    main()
