"""`simdformer train`, as it is typed: killed and resumed, over ranks, opened elsewhere, refused."""

import errno
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import simdformer as sf
from simdformer.cli._train_setup import filling
from simdformer.training import files as training_files
from simdformer.training.data import AnswerRows, StreamRows
from simdformer.training.options import TrainOptions
from subprocesses import HANG, environment

pytest.importorskip("tokenizers")

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 32,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
}
STEPS = 30
TALK = [
    {"role": "user", "content": "Who are you?"},
    {"role": "assistant", "content": "I am Tom."},
]
WORDS = ["Tom", "Mia", "a cat", "the dog", "sees", "likes", "runs to", "sings for"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Text, conversations, ids and configs in a directory."""
    directory = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(3)
    stories = [" ".join(rng.choice(WORDS, 12)) + "." for _ in range(40)]
    (directory / "story.txt").write_text("\n\n".join(stories))
    (directory / "one.txt").write_text(stories[0])
    (directory / "other.txt").write_text("One two three four five six seven eight, nine ten.")
    (directory / "val.txt").write_text("\n\n".join(stories[:5]))
    (directory / "chat.jsonl").write_text(json.dumps({"messages": TALK}) + "\n")
    rng.integers(0, 1000, 500).astype("<u2").tofile(directory / "ids.bin")
    (directory / "config.json").write_text(json.dumps(CONFIG))
    (directory / "tiny.json").write_text(json.dumps(CONFIG | {"vocab_size": 100}))
    experts = CONFIG | {"num_local_experts": 4, "num_experts_per_tok": 2}
    mixtral = experts | {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}
    (directory / "mixtral.json").write_text(json.dumps(mixtral))
    return directory


def arguments(files, out, *rest, data="story.txt"):
    return [
        "train", files / data, "--out", out, "--init", files / "config.json", "--vocab", 300,
        "--steps", STEPS, "--batch-tokens", 128, "--context", 16, "--lr", 3e-3, "--warmup", 3,
        "--val", files / "val.txt", "--every", 10, "--save-minutes", 0, *rest,
    ]  # fmt: skip


def start(given, ranks=1):
    mpiexec = [str(Path(sys.executable).with_name("mpiexec")), "-n", str(ranks)]
    return subprocess.Popen(
        [*(mpiexec if ranks > 1 else []), sys.executable, "-m", "simdformer", *map(str, given)],
        env=environment(SIMDFORMER_NUM_THREADS="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def log_of(directory):
    return [json.loads(line) for line in (directory / "log.jsonl").read_text().splitlines()]


def left(directory):
    """What a run has written, to the last bit, and its log without the times."""
    names = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
    log = log_of(directory)
    for line in log:
        del line["tokens_per_second"]
    weights = (directory / "model.safetensors").read_bytes()
    return weights, [(directory / name).read_bytes() for name in names], log


def finished(process, status=0):
    """What it printed and what it said, when it has ended with that status."""
    printed, said = process.communicate(timeout=HANG)
    assert process.returncode == status, said
    return printed, said


def sent(process, signal, checkpoint):
    """The process, which gets the signal when that checkpoint is there."""
    while not checkpoint.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.002)
    process.send_signal(signal)
    return process


@pytest.fixture(scope="module")
def unbroken(files, tmp_path_factory):
    out = tmp_path_factory.mktemp("unbroken") / "run"
    return out, *finished(start(arguments(files, out, "--sample", "Tom")))


def test_it_says_what_it_reads_learns_and_shows_it(unbroken):
    out, printed, said = unbroken
    assert "story.txt: text, 40 documents between blank lines" in said
    assert "trained a tokenizer of " in said
    _, _, log = left(out)
    assert [line["step"] for line in log] == list(range(1, STEPS + 1))
    assert log[0]["loss"] == pytest.approx(np.log(CONFIG["vocab_size"]), abs=0.3)
    assert log[-1]["val_loss"] < log[0]["loss"] - 1
    lines = printed.splitlines()
    assert [line.partition(":")[0] for line in lines[::2]] == [
        f"step {at} of {STEPS}" for at in (10, 20, 30)
    ]
    assert f"validation {log[-1]['val_loss']:.4f}" in lines[-2]
    model = sf.from_pretrained(out)
    room = CONFIG["max_position_embeddings"] - len(model.encode("Tom"))
    assert lines[-1] == "Tom" + model.generate("Tom", max_new_tokens=room)


def test_a_plan_says_what_a_run_takes_and_writes_nothing(command, files, tmp_path):
    out = tmp_path / "run"
    status, printed, said = command(*arguments(files, out, "--plan"))
    assert status == 0, said
    assert not out.exists()
    for line in (
        r"model +2 layers of 4 heads, 0\.03 million numbers that are trained",
        r"data .*; 30 steps go through it [\d.]+ times",
        r"a step +8 rows, 128 tokens, 0\.0 GFLOP",
        r"memory .*: weights .*, gradients .*, moments .*, activations ",
        r"measured +\S+ s a step, [\d,]+ tokens/s, \d+ GFLOPS, \d+% of [\d,]+",
        r"the run +[\d.]+ m?s",
    ):
        assert re.search(line, printed), printed
    assert "at most while it was measured" in printed


@pytest.mark.slow
def test_minutes_are_steps_that_a_probe_counts(command, files, tmp_path):
    """What was probed has changed nothing, and a resumed run has as many."""
    given = [one for one in arguments(files, tmp_path / "minutes") if one not in ("--steps", STEPS)]
    status, _, said = command(*given, "--minutes", 0.01)
    assert status == 0, said
    found = re.search(r"0\.01 minutes are enough for ([\d,]+) steps", said)
    steps = int(found[1].replace(",", ""))
    assert len(log_of(tmp_path / "minutes")) == steps
    status, _, said = command(*given, "--minutes", 0.01, "--resume")
    assert status == 0, said
    assert f"goes on after step {steps:,} of {steps:,}" in said
    assert (
        "--minutes is 0.02, this run began with 0.01"
        in (command(*given, "--minutes", 0.02, "--resume")[2])
    )
    given = arguments(files, tmp_path / "steps")
    given[given.index(STEPS)] = steps
    command(*given)
    weights = [
        (tmp_path / name / "model.safetensors").read_bytes() for name in ("minutes", "steps")
    ]
    assert weights[0] == weights[1]


def test_a_mixture_of_experts_learns(command, files, tmp_path):
    given = ["train", files / "story.txt", "--out", tmp_path, "--init", files / "mixtral.json"]
    given += ["--vocab", 300, "--steps", 30, "--batch-tokens", 128, "--lr", 1e-2, "--balance", 0.01]
    status, _, said = command(*given)
    assert status == 0, said
    log = log_of(tmp_path)
    assert log[-1]["loss"] < log[0]["loss"] - 1
    assert sf.from_pretrained(tmp_path).config.num_experts == 4
    assert "--balance is 0.02" in command(*given[:-1], 0.02, "--resume")[2]


@pytest.mark.slow
def test_the_curve_is_drawn(unbroken):
    pytest.importorskip("matplotlib")
    assert (unbroken[0] / "loss.png").read_bytes()[:4] == b"\x89PNG"


def test_what_looks_wrong_is_said(command, files, tmp_path):
    learnt_by_heart = ["--lr", 3e-2, "--steps", 60, "--val", files / "other.txt"]
    given = ["train", files / "one.txt", "--out", tmp_path / "run", "--init", files / "config.json"]
    given += ["--vocab", 300, "--batch-tokens", 64, "--context", 16, "--every", 20]
    _, _, said = command(*given, *learnt_by_heart)
    assert said.count("above that of the data: it is learnt by heart") == 1


def test_how_much_fills_rows_up():
    def row(size):
        return np.ones(size + 1, np.int32), np.ones(size + 1, bool)

    options = TrainOptions(data=(), batch_tokens=1024, context=64)
    assert filling(AnswerRows([row(64)] * 4, 64), options) == 0
    assert filling(AnswerRows([row(64), *[row(16)] * 3], 64), options) == 9 / 16
    assert filling(StreamRows(np.ones(200, np.uint16), 64), options) == 0


@pytest.mark.parametrize(("rows", "parts"), [(1, 1), (6, 2), (8, 4)])
def test_micro_batches_divide_a_step_and_small_data_are_told(command, files, tmp_path, rows, parts):
    given = ["train", files / "one.txt", "--out", tmp_path, "--init", files / "config.json"]
    given += ["--vocab", 300, "--steps", 2, "--batch-tokens", 16 * rows, "--context", 16]
    status, _, said = command(*given)
    assert status == 0, said
    assert json.loads((tmp_path / "training.json").read_text())["micro_batches"] == parts
    assert ("goes through all of DATA more than once" in said) == (rows > 2)


def test_the_same_bits_where_parts_are_computed_again(command, files, unbroken, tmp_path):
    status, _, said = command(*arguments(files, tmp_path / "run", "--checkpoint", "layer"))
    assert status == 0, said
    assert left(tmp_path / "run") == left(unbroken[0])


def test_killed_in_the_middle_it_goes_on_with_the_same_bits(files, unbroken, tmp_path):
    out = tmp_path / "run"
    process = sent(start(arguments(files, out)), signal.SIGKILL, out / "checkpoint-000005")
    finished(process, -signal.SIGKILL)
    assert not (out / "model.safetensors").exists()
    _, said = finished(start(arguments(files, out, "--resume")))
    assert "goes on after step " in said
    assert left(out) == left(unbroken[0])


@pytest.mark.slow
def test_interrupted_it_leaves_the_model_so_far(files, unbroken, tmp_path):
    out = tmp_path / "run"
    process = sent(start(arguments(files, out)), signal.SIGTERM, out / "checkpoint-000003")
    finished(process, 130)
    assert sf.from_pretrained(out)([1, 2]).shape == (2, CONFIG["vocab_size"])
    finished(start(arguments(files, out, "--resume")))
    assert left(out) == left(unbroken[0])


def test_a_second_interruption_within_a_step_leaves_no_model(command, files, tmp_path, monkeypatch):
    """Some weights are those of the next step by then."""
    usual, calls = sf.optim.adamw_, []

    def interrupted(*arguments, **named):
        usual(*arguments, **named)
        calls.append(named["step"])
        if calls.count(3) == 5:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(sf.optim, "adamw_", interrupted)
    status, _, said = command(*arguments(files, tmp_path))
    assert status == 130
    assert "interrupted a second time, no model is written; checkpoint-000002 is whole" in said
    assert not (tmp_path / "model.safetensors").exists()
    assert log_of(tmp_path)[-1]["step"] == 2


def test_no_room_for_the_model_leaves_the_checkpoint(command, files, tmp_path, monkeypatch):
    usual, named = training_files.sync, f"{tmp_path / 'model.safetensors'}: cannot be written (No "

    def full(file):
        if "model.safetensors" in file.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        usual(file)

    monkeypatch.setattr(training_files, "sync", full)
    given = arguments(files, tmp_path)
    status, _, said = command(*given)
    assert status == 2
    assert named in said
    assert f"checkpoint-{STEPS:06d} is whole; free some space, then --resume" in said
    assert not (tmp_path / "config.json").exists()
    monkeypatch.setattr(training_files, "sync", usual)
    status, _, said = command(*given, "--resume")
    assert status == 0, said


@pytest.mark.slow
def test_two_ranks_give_the_same_bits(files, unbroken, tmp_path):
    pytest.importorskip("mpi4py")
    out = tmp_path / "run"
    printed, _ = finished(start(arguments(files, out, "--sample", "Tom"), ranks=2))
    assert left(out) == left(unbroken[0])
    assert printed.count("\n") == unbroken[1].count("\n")  # one of them speaks


def test_transformers_opens_it_with_the_same_logits(unbroken):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    out = unbroken[0]
    theirs = transformers.AutoModelForCausalLM.from_pretrained(out)
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    ours = sf.from_pretrained(out)
    ids = ours.encode("Tom sees a cat.")
    assert tokenizer("Tom sees a cat.")["input_ids"] == ids
    with torch.no_grad():
        expected = theirs(torch.tensor([ids])).logits[0].numpy()
    np.testing.assert_allclose(ours(ids), expected, atol=1e-4)  # float32 in another order


def test_conversations_and_what_is_learned_of_them(command, files, tmp_path):
    common = ["train", files / "chat.jsonl", "--out", tmp_path, "--init", files / "config.json"]
    common += ["--vocab", 300, "--stage", "sft", "--epochs", 30, "--batch-tokens", 128]
    status, printed, _ = command(*common, "--show-mask")
    assert status == 0
    assert printed == (
        "<|im_start|>user\nWho are you?<|im_end|>\n<|im_start|>assistant\n[[I am Tom.<|im_end|>]]\n"
    )
    assert not (tmp_path / "training.json").exists()
    status, _, said = command(*common)
    assert status == 0, said
    assert len(log_of(tmp_path)) == round(30 / (128 // 32))  # rows of the model's length
    assert sf.from_pretrained(tmp_path).chat_template is not None


def test_the_model_of_the_package_goes_on_learning(command, files, tmp_path):
    status, _, said = command(
        "train", files / "story.txt", "--out", tmp_path, "--model", "demo", "--steps", 4,
        "--batch-tokens", 256, "--context", 64, "--warmup", 0,
    )  # fmt: skip
    assert status == 0, said
    log = log_of(tmp_path)
    assert log[-1]["loss"] < log[0]["loss"]
    assert sf.from_pretrained(tmp_path).generate("Tom", max_new_tokens=3)


def the_error(command, data, out, given):
    """What `simdformer train` refuses with: one line, before anything is printed or begun."""
    status, printed, said = command("train", data, "--out", out, *given.split())
    assert (status, printed) == (2, "")
    [error] = [line for line in said.splitlines() if ": error: " in line]
    assert not (out / "training.json").exists()
    return error


@pytest.mark.parametrize(
    ("data", "given", "message"),
    [
        ("story.txt", "--init config.json", "holds text, which needs a tokenizer"),
        ("story.txt", "--init tiny.json --vocab 300", "the model's vocab_size, 100"),
        ("ids.bin", "--init config.json", "below the model's vocab_size, 320"),
        ("ids.bin", "--init config.json --vocab 300", "--vocab: "),
        ("ids.bin", "--init config.json --sample x", "--sample needs a tokenizer"),
        ("story.txt", "--model demo --context 999", "--context is 999, needs at most"),
        ("story.txt", "--model demo --stage sft", "--stage is sft, "),
        ("chat.jsonl", "--init config.json --tokenizer demo", "no chat template"),
        ("story.txt", "--model demo --val chat.jsonl", "--stage is pretrain, "),
        (
            "story.txt",
            "--model demo --batch-tokens 512 --micro-batches 4",
            "a step has 2 rows, needs a multiple of 4 micro-batches",
        ),
        ("story.txt", "--model demo --resume", "found no run to resume"),
        ("story.txt", "--model demo --beta 0.2", "--beta is for --stage dpo, DATA are for pretr"),
        ("story.txt", "--model demo --balance 0.1", "--balance is for mixtures of experts"),
        ("story.txt", "--model no-such-model", "no such file or directory"),
        ("story.txt", "--model demo --init config.json", "not allowed with argument"),
        ("story.txt", "", "one of the arguments --init --model is required"),
        ("story.txt", "--model demo --steps 1 --epochs 1", "not allowed with argument"),
        ("story.txt", "--model demo --vocab 258", "--vocab: found '258', needs a whole"),
        ("story.txt", "--model demo --lr 0", "--lr: found '0', needs a number > 0"),
        ("story.txt", "--model demo --min-lr 2", "--min-lr: found '2', needs a number from 0"),
        ("nothing.txt", "--model demo", "there is no file"),
    ],
)
def test_what_does_not_fit_is_one_sentence(
    command, files, tmp_path, monkeypatch, data, given, message
):
    monkeypatch.chdir(files)
    assert message in the_error(command, data, tmp_path / "run", given)


@pytest.mark.parametrize(
    ("began", "goes_on", "message"),
    [
        ("", "--vocab 300", "--vocab is 300, this run began with None"),
        ("--vocab 500", "", "--vocab is None, this run began with 500"),
        ("", "--lora 4", "--lora is 4, this run began with None"),
    ],
)
def test_other_words_or_adapters_name_both(
    command, files, tmp_path, monkeypatch, began, goes_on, message
):
    monkeypatch.chdir(files)
    given = ["train", "story.txt", "--out", tmp_path, "--model", "demo", "--steps", 1]
    given += ["--batch-tokens", 16, "--context", 16]
    assert command(*given, *began.split())[0] == 0
    status, _, said = command(*given, *goes_on.split(), "--resume")
    assert status == 2
    assert message in said


def test_a_step_that_is_larger_than_it_should_be_is_told(command, files, tmp_path):
    given = ["train", files / "story.txt", "--out", tmp_path, "--model", "demo", "--steps", 1]
    _, _, said = command(*given, "--context", 16, "--batch-tokens", 3)
    assert "a step has one row of 16 tokens: --batch-tokens is 3, less than --context" in said


def test_a_file_in_place_of_the_directory_is_named(command, files):
    status, _, said = command(*arguments(files, files / "story.txt"))
    assert status == 2
    assert f"--out is {files / 'story.txt'}, a file; give a directory" in said


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "adapter_config.json"])
def test_a_model_is_not_replaced(command, files, tmp_path, name):
    (tmp_path / name).write_text("a model of somebody")
    status, _, said = command(*arguments(files, tmp_path))
    assert status == 2
    assert f"--out is {tmp_path}, where a model lies already ({name})" in said
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "a model of somebody"


def test_a_second_run_is_kept_out(command, files, unbroken, tmp_path):
    out = unbroken[0]
    before = left(out)
    assert "holds a run already; add --resume" in command(*arguments(files, out))[2]
    changed = arguments(files, out, "--resume", "--seed", 1)
    assert "--seed is 1, this run began with 0" in command(*changed)[2]
    descriptor = os.open(out, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        status, _, said = command(*arguments(files, out, "--resume"))
    finally:
        os.close(descriptor)
    assert (status, said.splitlines()[-1]) == (
        2,
        f"simdformer: error: {out}: another run is writing into it",
    )
    assert left(out) == before
