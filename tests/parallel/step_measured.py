"""On every rank: steps of a small model are measured, and planned. Prints what rank 0 is told."""

from simdformer.bench import Case, measure_step_over_ranks, step_rates, training_cases
from simdformer.parallel import world


def main():
    step_rates.NUMBERS = 1 << 12
    ranks = world()
    case = Case("tiny", next(training_cases()).work.smaller())
    found = measure_step_over_ranks(ranks, case)
    assert found.seconds > 0
    assert (found.planned is None) == (ranks.rank > 0)
    if ranks.rank == 0:
        assert found.planned.ranks == ranks.size
        print(found)


if __name__ == "__main__":
    main()
