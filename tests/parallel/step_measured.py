"""On every rank: steps of a small model are measured, and planned. Prints what rank 0 is told."""

from checkpoints import tiny_config
from simdformer.bench import Case, TrainingStep, measure_step_over_ranks, step_rates
from simdformer.parallel import world


def main():
    step_rates.NUMBERS = 1 << 12
    ranks = world()
    config = tiny_config(hidden_size=64, num_layers=2, head_dim=16, rope_layout="half")
    case = Case("tiny", TrainingStep(config=config, rows=2, length=24))
    found = measure_step_over_ranks(ranks, case)
    assert found.seconds > 0
    assert found.planned.ranks == ranks.size
    if ranks.rank == 0:
        print(found)


if __name__ == "__main__":
    main()
