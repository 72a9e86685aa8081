"""What a model would take on several ranks: the plan counts what models have and do."""

import json
import re
from itertools import combinations

import numpy as np
import pytest

import ranks
import simdformer as sf
import tiny_models
from checkpoints import GEMMA, GPT2, random_weights, tiny_config
from simdformer.bench import rates
from simdformer.checkpoints import CheckpointError, read_checkpoint
from simdformer.checkpoints.huggingface import config_alone
from simdformer.checkpoints.planned import planned_types
from simdformer.models import Transformer
from simdformer.models.budget import decode_bytes, weight_bytes
from simdformer.models.communicator import Communicator
from simdformer.models.ranks import deal
from simdformer.models.tensors import block_of, kind_of
from simdformer.parallel.plan import (
    Bill,
    Link,
    Load,
    Rates,
    busiest,
    exchanges,
    predict,
    sizes_of,
    visible_pairs,
)
from simdformer.text.quantizing import quantize_checkpoint

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "expert_intermediate_size": 48}
MODELS = {
    "llama": {},
    "untied": {"tie_embeddings": False},
    "gemma": GEMMA | {"norm_offset": 0.0},
    "gpt2": GPT2,
    "experts": EXPERTS | {"num_experts": 16},
}
WIDE = {"vocab_size": 320, "intermediate_size": 64}  # whole panels: nothing is rounded up
RATES = Rates(read=10e9, operations=100e9, layer=1e-4, threads=2)
LINK = Link(bandwidth=1e9, latency=1e-5)


def config_of(name):
    return tiny_config(**WIDE | MODELS[name])


def floats(config):
    return planned_types(config, "float32")


@pytest.mark.parametrize("name", MODELS)
def test_alone_a_rank_holds_and_reads_what_a_model_does(name):
    config = config_of(name)
    weights = random_weights(np.random.default_rng(0), config)
    model = Transformer(config, weights)
    found = predict(config, floats(config), RATES, LINK, Load(context=20), 1)
    assert found.weights == weight_bytes(config, weights, None)
    assert found.cache == model.new_cache(20, page_size=20).data.nbytes
    bill = bill_of(config, 1)
    rows = 2 * 4 * config.hidden_size  # of the embedding and of the positions: nothing beside that
    assert 0 <= decode_bytes(config, model.weights, 20, 4) - bill.read <= rows


def bill_of(config, ranks, rank=0, load=None):
    part = deal(config, lambda name: 1, ranks)[rank]
    sizes = sizes_of(config, floats(config))
    return Bill.of(config, sizes, part, load or Load(context=20), config.num_experts_per_tok)


@pytest.mark.parametrize("name", MODELS)
def test_ranks_hold_the_model_between_them(name):
    """All of it; norms and what routes are everywhere."""
    config = config_of(name)
    whole = bill_of(config, 1).held
    parts = [bill_of(config, 2, rank).held for rank in range(2)]
    assert whole < sum(parts) < 1.1 * whole
    assert max(parts) == predict(config, floats(config), RATES, LINK, Load(), 2).weights


def test_a_key_head_that_two_ranks_share_is_in_both():
    config = tiny_config(**WIDE, num_kv_heads=1)
    assert bill_of(config, 2).cache == bill_of(config, 1).cache


def test_more_ranks_than_heads_are_refused_as_the_model_refuses_them():
    with pytest.raises(ValueError, match="found 5 ranks, needs at most 4"):
        predict(tiny_config(), floats(tiny_config()), RATES, LINK, Load(), 5)


@pytest.mark.parametrize(("experts", "chosen", "ranks"), [(4, 2, 2), (6, 3, 3), (8, 2, 4)])
def test_the_rank_that_most_of_a_choice_falls_to(experts, chosen, ranks):
    config = tiny_config(**EXPERTS | {"num_experts": experts, "num_experts_per_tok": chosen})
    owners = [part.experts for part in deal(config, lambda name: 1, ranks)]
    loads = [
        max(sum(expert in own for expert in choice) for own in owners)
        for choice in combinations(range(experts), chosen)
    ]
    assert busiest(owners, chosen) == pytest.approx(np.mean(loads), rel=0.05)
    assert busiest([range(experts)], chosen) == chosen


@pytest.mark.parametrize(("length", "window"), [(7, None), (7, 3), (3, 9), (1, 1)])
def test_pairs_of_queries_and_keys(length, window):
    i = np.arange(length)
    seen = (i[:, None] >= i) & (i[:, None] - i < (window or length))
    assert visible_pairs(length, window) == seen.sum()


class Counting(Communicator):
    """Remembers the shapes of what is summed."""

    def __init__(self):
        self.shapes = []

    def all_reduce(self, x):
        self.shapes.append(x.shape)
        return x


@pytest.mark.parametrize("ids", [1, 5])
def test_the_sums_that_are_counted_are_those_of_a_model(ids):
    config = config_of("llama")
    communicator = Counting()
    weights = random_weights(np.random.default_rng(0), config)
    Transformer(config, weights, communicator=communicator)(np.arange(ids))
    assert set(communicator.shapes) == {(1, ids, config.hidden_size)}
    sums = exchanges(config, 2, ids)[0]
    assert sums.count == len(communicator.shapes) + 1  # and the embedding, which alone is not one
    assert sums.bytes == ids * config.hidden_size * 4


def test_what_links_cost():
    """Twice the latency is twice the waiting of short messages, a link of half the rate twice that
    of long ones; alone nobody waits."""
    config, types = config_of("llama"), floats(config_of("llama"))

    def waiting(link, prompt=512, ranks=4):
        return predict(config, types, RATES, link, Load(prompt=prompt), ranks)

    slow, narrow = Link(1e15, 2e-3), Link(1e3, 0.0)
    assert waiting(slow).token_link == pytest.approx(2 * waiting(Link(1e15, 1e-3)).token_link)
    assert waiting(narrow).prompt_link == pytest.approx(waiting(Link(5e2, 0.0)).prompt_link / 2)
    alone = waiting(slow, ranks=1)
    assert (alone.token_link, alone.prompt_link, alone.token_sent) == (0, 0, 0)


def test_ranks_of_one_machine_share_it():
    config, types = config_of("llama"), floats(config_of("llama"))
    apart, shared = (
        predict(config, types, RATES, Link(1e15, 0.0), Load(), 2, per_machine=n) for n in (1, 2)
    )
    calls = config.num_layers * RATES.layer
    assert shared.token - calls == pytest.approx(2 * (apart.token - calls), rel=1e-6)


@pytest.mark.parametrize("group", [32, 128])
def test_groups_of_few_bits_count_as_what_they_take(group):
    codes = np.zeros((4, 256), np.uint8)
    scales = np.ones((4, 256 // group), np.float32)
    weight = sf.QuantizedWeight.from_groups(codes, scales, minimums=scales)
    config = config_of("llama")
    sizes = sizes_of(config, dict.fromkeys(floats(config), weight.type))
    embed = config.vocab_size * config.hidden_size
    assert sizes["embed"] == embed * weight.bits_per_weight / 8
    assert block_of(weight.type) == group


# ---- of models that nobody has written -----------------------------------------------------------


@pytest.mark.parametrize("type", ["q4_k_m", "q8_0", "q5_k_s"])
def test_types_are_those_of_the_file_that_would_be_written(tmp_path, type):
    quantize_checkpoint(sf.demo_path(), tmp_path / "demo.gguf", type)
    written = read_checkpoint(tmp_path / "demo.gguf")
    planned = planned_types(written.config, type)
    assert planned == {name: kind_of(tensor) for name, tensor in written.weights.items()}


@pytest.mark.parametrize("name", tiny_models.MODELS)
def test_a_config_alone_says_what_it_says_beside_its_weights(tmp_path, name):
    tiny_models.make(name).to(tiny_models.torch.bfloat16).save_pretrained(tmp_path)
    config, dtype = config_alone(tmp_path / "config.json")
    assert config == read_checkpoint(tmp_path).config
    assert dtype == "bfloat16"


def test_a_config_alone_is_as_hostile_as_any(tmp_path):
    file = tmp_path / "config.json"
    tiny_models.make("llama3").save_pretrained(tmp_path)
    found = json.loads(file.read_text())
    file.write_text(json.dumps(found | {"num_hidden_layers": 10**12}))
    with pytest.raises(CheckpointError, match=r"config.json.*num_hidden_layers.*up to 10000"):
        config_alone(file)


@pytest.mark.slow
def test_the_command(command, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        rates, "LARGEST", 1 << 22
    )  # what is measured would be cached, but soon done
    tiny_models.make("llama3").save_pretrained(tmp_path)
    capsys.readouterr()
    model = tmp_path / "config.json"
    status, out, err = command("plan", model, "--ranks", "8", "--type", "bfloat16")
    assert (status, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    assert [row.split()[0] for row in out.splitlines() if re.match(r" {4}\d  ", row)] == list(
        "1248"
    )
    assert "8  model: found 8 ranks, needs at most 4" in out


@pytest.mark.parametrize(
    ("option", "value", "needed"),
    [
        ("--link", "10", "10Gb/s"),
        ("--link", "0Gb/s", "10Gb/s"),
        ("--latency", "1h", "20us"),
        ("--type", "q9", "q4_k_m"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_measured(command, option, value, needed):
    status, _, err = command("plan", "demo", option, value)
    assert status == 2
    assert value in err
    assert needed in err


@pytest.mark.slow
def test_ranks_are_measured_beside_the_plan():
    first, token, prompt = ranks.program(2, "measured.py").splitlines()
    assert first == "tiny in bfloat16 on 2 ranks"
    line = r" ms, +[\d.]+ tok/s; planned [\d.]+ ms, of it \d+% link"
    assert re.fullmatch(r"  one more token +[\d.]+" + line, token)
    assert re.fullmatch(r"  a prompt +[\d.]+" + line, prompt)


def test_only_models_are_measured_over_ranks():
    status, _, err = ranks.cli(2, "bench", "--only", "softmax")
    assert status == 2
    assert (
        err == "simdformer: error: --only names no model, needs one of Qwen3-0.6B, Llama-3.2-1B\n"
    )
