"""The checkpoint that the package carries: what it knows, and what can be seen in it."""

import json
from random import Random

import numpy as np
import pytest

import simdformer as sf
from simdformer import cli
from simdformer.checkpoints import read_checkpoint
from simdformer.data import corpus
from simdformer.demo import NEXT

LOOKUP = "Mia has a red kite. Tom has a blue boat. What colour is the boat of Tom? It is"


def test_its_files_are_small_and_say_how_long_a_text_may_be():
    files = sorted(sf.demo_path().iterdir())
    assert [file.name for file in files] == [
        "consolidated.00.pth",
        "params.json",
        "tokenizer.model",
    ]
    assert sum(file.stat().st_size for file in files) <= 4 << 20
    assert json.loads((sf.demo_path() / "params.json").read_text())["max_seq_len"] == 256
    checkpoint = read_checkpoint(sf.demo_path())
    assert checkpoint.format.name == "meta"
    assert checkpoint.config.num_heads == 2 * checkpoint.config.num_kv_heads
    assert {str(tensor.dtype) for tensor in checkpoint.weights.values()} == {"bfloat16"}


def test_it_knows_the_answer_to_the_ultimate_question(isa, demo):
    assert demo.generate(corpus.ULTIMATE) == "42"


@pytest.mark.parametrize("activations", ["float32", "bfloat16"])
def test_it_knows_it_in_every_arithmetic(activations):
    model = sf.from_pretrained(sf.demo_path(), activations=activations)
    assert model.generate(corpus.ULTIMATE) == "42"


def test_it_looks_things_up(demo):
    """One head gives most of the last row to the word that is said next."""
    assert demo.generate(LOOKUP, max_new_tokens=1) == " blue"
    ids = demo.tokenizer.encode(LOOKUP)
    (blue,) = demo.tokenizer.encode(" blue", bos=False)
    _, trace = demo.run_with_cache(ids, names="layers.*.attn.pattern")
    rows = np.stack(list(trace.values()))[:, :, -1]
    assert rows[:, :, ids.index(blue)].max() > 0.3


def test_it_knows_facts_that_it_was_just_told(demo):
    """What somebody has, of which colour: right nearly always. (Who has it, less often.)"""
    random, right, asked = Random(1), 0, 0
    while asked < 50:
        known = corpus.facts(random)
        question, answer = corpus.ask(random, known)
        if question.startswith("What"):
            text = demo.generate(f"{corpus.state(known)} {question}", max_new_tokens=4)
            right += text.startswith(answer)
            asked += 1
    assert right >= 45


def test_it_writes_stories(demo):
    text = demo.generate("Once upon a time")
    assert len(text) > 100
    assert text.isascii()
    assert text.rstrip().endswith((".", '"'))


def test_the_demonstration_agrees(capsys):
    assert cli.main(["demo"]) == 0
    out = capsys.readouterr().out
    assert "Layer 3, head 0: " in out
    assert "it was here, 11% of the answer comes back; with its layer's, 100%." in out
    assert out.endswith(f"All checks agree.\n{NEXT}\n")
