"""What a step of training would take on several ranks: the plan counts what a run does."""

import math
import re

import numpy as np
import pytest

import ranks
import tiny_models
from checkpoints import tiny_config
from simdformer.bench import step_rates
from simdformer.models.communicator import Communicator
from simdformer.parallel.plan import Link
from simdformer.training.gradient_tree import PIECE, GradientTree
from simdformer.training.options import TrainOptions
from simdformer.training.plan import StepRates, predict_step
from simdformer.training.work import all_parameters, flops_of_token, head_flops, work_of_step

NEVER = math.inf
FREE = StepRates(layers=1e9, head=1e9, added=NEVER, updated=NEVER, joined=NEVER, threads=2)
FAST = Link(NEVER, 0.0)
STEP = TrainOptions(data=(), batch_tokens=256, context=16, micro_batches=8)
CONFIG = tiny_config(vocab_size=320)
NUMBERS = sum(array.size for array in all_parameters(CONFIG).values())


def of(ranks, rates=FREE, link=FAST, step=STEP, **options):
    return predict_step(CONFIG, rates, link, step, ranks, **options)


def test_a_rank_computes_its_share():
    flops = 256 * flops_of_token(CONFIG, all_parameters(CONFIG), 16)
    assert of(1).seconds == pytest.approx(flops / 1e9)
    assert [of(1).seconds / of(n).seconds for n in (2, 8)] == pytest.approx([2, 8])
    slow = StepRates(layers=1e9, head=1e8, added=NEVER, updated=NEVER, joined=NEVER, threads=2)
    more = 256 * head_flops(CONFIG) * (1e-8 - 1e-9)
    assert of(1, slow).seconds - of(1).seconds == pytest.approx(more)


def test_every_gradient_but_the_first_is_added_and_all_ranks_update():
    rates = StepRates(layers=NEVER, head=NEVER, added=1e6, updated=2e6, joined=4e6, threads=2)
    assert of(1, rates).seconds == pytest.approx(NUMBERS * (7 / 1e6 + 1 / 2e6))
    assert of(4, rates).seconds == pytest.approx(NUMBERS * (1 / 1e6 + 1 / 2e6 + 1 / 4e6))


def test_ranks_of_one_machine_share_it():
    assert of(4, per_machine=4).seconds == pytest.approx(of(1).seconds)
    rates = StepRates(layers=NEVER, head=NEVER, added=NEVER, updated=NEVER, joined=1e6, threads=2)
    assert of(2, rates, per_machine=2).seconds == pytest.approx(NUMBERS / 1e6)  # a core each
    assert of(4, rates, per_machine=4).seconds == pytest.approx(2 * NUMBERS / 1e6)


class Counting(Communicator):
    """One of several ranks that add up zeros; it remembers how many numbers."""

    def __init__(self, size):
        self.size, self.sizes = size, []

    def all_reduce(self, x, *, tree=False):
        assert tree
        self.sizes.append(x.size)
        return x


@pytest.mark.parametrize("numbers", [1000, 3 * PIECE])
def test_what_is_sent_are_the_gradients(numbers):
    communicator = Counting(2)
    tree = GradientTree({"a": np.empty(numbers)})
    tree.add({"a": np.zeros(numbers, np.float32)})
    tree.total(communicator)
    assert communicator.sizes == [min(numbers, PIECE)] * -(-numbers // PIECE)
    assert (of(2).sent, of(1).sent) == (4 * NUMBERS, 0)
    assert of(8).sent == pytest.approx(4 * NUMBERS * (7 if 6 * 4 * NUMBERS <= 1 << 16 else 7 / 4))


def test_what_links_cost():
    for n in (2, 8):
        slow = of(n, link=Link(1e6, 0.0))
        assert slow.link == pytest.approx(slow.sent / 1e6)
        assert slow.seconds - slow.link == pytest.approx(of(n).seconds)
        twice, once = (of(n, link=Link(NEVER, t)).link for t in (2e-3, 1e-3))
        assert twice == pytest.approx(2 * once)
        assert once > 0
    assert of(1, link=Link(1e6, 1.0)).link == 0


def test_memory_is_that_of_a_run_and_of_what_ranks_exchange():
    work = work_of_step(CONFIG, all_parameters(CONFIG), rows=16, length=16, micro_batches=8)
    alone = work.moments + work.gradients + work.activations + 4 * NUMBERS
    assert of(1).memory == alone
    assert of(8).memory >= 4 * NUMBERS * (1 + 2 + 2)  # weights, moments, gradients twice


@pytest.mark.parametrize(
    ("n", "message"),
    [
        (32, r"a step has 16 rows, needs one for each of 32 ranks; give more --batch-tokens"),
        (16, r"8 micro-batches are dealt to 16 ranks.*--micro-batches 16"),
        (3, r"8 micro-batches are dealt to 3 ranks"),
    ],
)
def test_what_cannot_be_dealt_is_refused(n, message):
    with pytest.raises(ValueError, match=message):
        of(n)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("options", [{}, {"num_experts": 4, "num_experts_per_tok": 2}])
def test_rates_are_measured(monkeypatch, precision, options):
    monkeypatch.setattr(step_rates, "NUMBERS", 1 << 12)
    sizes = options | ({"expert_intermediate_size": 48} if options else {})
    config = tiny_config(vocab_size=320, **sizes)
    step = TrainOptions(data=(), batch_tokens=64, context=16, precision=precision)
    found = step_rates.measure_step_rates(config, step, budget=0.05)
    assert all(0 < one < NEVER for one in vars(found).values())


@pytest.mark.slow
def test_the_command(command, tmp_path, capsys):
    tiny_models.make("llama3").save_pretrained(tmp_path)
    capsys.readouterr()
    model = tmp_path / "config.json"
    given = ["plan", model, "--training", "--batch-tokens", 256, "--context", 32]
    status, out, err = command(*given, "--ranks", 16, "--link", "1Gb/s")
    assert (status, err) == (0, "")
    assert "a step has 8 rows of 32 tokens\n  in 8 micro-batches" in out
    assert "link: 1 Gb/s, 20 us" in out
    assert max(map(len, out.splitlines())) <= 80
    rows = [row.split() for row in out.splitlines() if re.match(r" {4}\d  ", row)]
    assert [row[0] for row in rows] == list("1248")
    assert [row[-1] for row in rows[0:1]] == ["bytes"]  # 0 of them
    assert "   16  a step has 8 rows, needs one for each of 16 ranks" in out


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("--training --type q8_0", "--type is not for --training"),
        ("--batch-tokens 64", "--batch-tokens is for --training"),
        ("--training --context 9999", "--context is 9999, needs at most max_seq_len, 256"),
        ("--training --batch-tokens 768 --micro-batches 2", "a step has 3 rows, needs a multiple"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_measured(command, given, message):
    status, out, err = command("plan", "demo", *given.split())
    assert (status, out) == (2, "")
    assert message in err


@pytest.mark.slow
def test_a_step_is_measured_on_ranks_beside_its_plan():
    first, step = ranks.program(2, "step_measured.py").splitlines()
    assert first == "tiny on 2 ranks"
    assert re.fullmatch(
        r"  a step +[\d.]+ ms, +[\d.]+ tok/s; planned [\d.]+ ms, of it \d+% link", step
    )
