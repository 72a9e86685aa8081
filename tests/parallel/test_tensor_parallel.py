"""Models in parts, on two to four ranks, beside the same model alone."""

import os
import re
import shlex
from pathlib import Path

import pytest
import transformers

import ranks
import tiny_models
from ranks import HERE
from same_as_alone import MODELS
from simdformer.text.quantizing import quantize_checkpoint

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.xdist_group("ranks")  # one mpiexec at a time


FEW = ["keys and values repeated", "olmo2", "experts in few bits"]


@pytest.mark.parametrize(
    ("size", "models"),
    [
        (2, FEW),
        *(pytest.param(size, list(MODELS), marks=pytest.mark.slow) for size in (2, 3)),
        pytest.param(4, FEW, marks=pytest.mark.slow),
    ],
)
def test_logits_activations_and_edits_are_those_of_the_model_alone(size, models):
    assert ranks.program(size, "same_as_alone.py", *models).splitlines() == models


# ---- files ---------------------------------------------------------------------------------------

# Rows of 16 KB, so that a part of one is worth a read of its own.
WIDE = {
    "vocab_size": 128,
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "intermediate_size": 4096,
    "max_position_embeddings": 64,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
}


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """wide("safetensors"): a checkpoint of 30 MB, or what it is in few bits."""
    folder = tmp_path_factory.mktemp("wide")
    config = transformers.AutoConfig.for_model("llama", **WIDE)
    model = tiny_models.randomise(transformers.AutoModelForCausalLM.from_config(config))
    model.save_pretrained(folder / "safetensors")

    def make(kind):
        path = folder / kind
        if not path.exists():
            quantize_checkpoint(folder / "safetensors", path, kind, tokenizer=False)
        return path

    return make


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("kind", "size"), [("safetensors", 2), ("q4_k_m", 4)])
def test_every_rank_reads_its_part_of_a_file(wide, kind, size):
    arithmetic = "float32"  # the other rounds activations, which differ in their last bits
    whole, *read = map(
        int, ranks.program(size, "reads_its_part.py", wide(kind), arithmetic).split()
    )
    assert len(read) == size
    assert max(read) < whole / size + 250_000  # norms and headers are for all
    assert sum(read) > 0.99 * whole


# ---- text ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_texts_are_those_of_the_model_alone():
    assert ranks.program(2, "texts.py") == "the same\n"


def test_the_line_in_the_readme_gives_the_same_text(command):
    (line,) = re.findall(r"`mpiexec -n (\d) simdformer (.*?)`", (ROOT / "README.md").read_text())
    size, arguments = int(line[0]), shlex.split(line[1])
    status, out, err = ranks.cli(size, *arguments)
    assert (status, out) == (0, command(*arguments)[1])
    assert f"{size} ranks of 1 thread" in err


def test_the_program_in_the_docs_runs(tmp_path):
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/scaling.md").read_text(), re.S)
    program = program.replace("path,", "sf.demo_path(),").replace("8)", "8, max_new_tokens=9)")
    program += "assert len(set(MPI.COMM_WORLD.allgather(text))) == 1\n"
    program += "assert trace['pattern', 2].shape[0] == model.config.num_heads\n"
    (tmp_path / "program.py").write_text(program)
    assert ranks.run(2, tmp_path / "program.py") == (0, "", "")


def test_threads_share_a_machine_unless_somebody_says_how_many():
    program = HERE / "threads.py"
    both = 2 * len(os.sched_getaffinity(0))
    told = ranks.run(2, program, SIMDFORMER_NUM_THREADS="3")[1]
    assert told.split() == ["3", "3"]
    free = ranks.run(2, program, SIMDFORMER_NUM_THREADS="")[1].split()
    assert 2 <= sum(map(int, free)) <= max(both // 2, 2)


def test_a_rank_that_waits_leaves_the_core_to_others():
    """Naps of 20 µs took half of what rank 0 measured, which predictions were made from."""
    status, out, err = ranks.run(2, HERE / "waits.py")
    assert (status, err) == (0, "")
    first, last = map(float, out.split())
    assert last > 100 * first
