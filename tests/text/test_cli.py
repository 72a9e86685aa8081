"""The command line: what it prints where, and with which exit status."""

import dataclasses
import os
import re
import subprocess
import sys

import pytest

import simdformer as sf
from checkpoints import TINY
from simdformer.bench.machine import read_rate
from simdformer.checkpoints import read_checkpoint
from simdformer.models.budget import cache_bytes, decode_bytes, weight_bytes
from simdformer.starting import is_command

# ---- run -----------------------------------------------------------------------------------------


def test_run_writes_the_text_and_then_speed_and_hash(command, tiny):
    expected = "abc" + sf.from_pretrained(tiny).generate("abc", max_new_tokens=9) + "\n"
    status, out, err = command("run", tiny, "abc", "--max-new-tokens", 9)
    assert (status, out) == (0, expected)
    assert re.fullmatch(
        r"prefill 3 tokens at [\d,]+ a second, decode \d tokens? at [\d,]+ a second "
        r"\(\d+\.\d of \d+\.\d GB/s\), "
        rf"last logits [0-9a-f]{{16}}, {sf.isa()}, \d+ threads?\n",
        err,
    )


REPEATING = "Tom has a red car. Mia has a blue car. Tom has a red car. Mia has"


@pytest.mark.parametrize("draft", ["prompt", "demo"])
def test_a_draft_is_counted_and_changes_no_text(command, draft):
    run = ("run", "demo", REPEATING, "--max-new-tokens", 40)
    _, text, plain = command(*run)
    status, drafted, err = command(*run, "--draft", draft)
    assert (status, drafted) == (0, text)
    assert "drafted" not in plain
    accepted, proposed = map(
        int, re.search(r", (\d+) of (\d+) drafted tokens accepted,", err).groups()
    )
    assert 5 < accepted <= proposed
    assert re.search("logits [0-9a-f]+", err)[0] == re.search("logits [0-9a-f]+", plain)[0]


def test_what_is_drafted_is_read_once(command, monkeypatch):
    """Bytes read a second are those of the steps, not of the tokens that came."""
    reports = []

    def generate(self, prompt, report, draft, **options):
        report.prompt_ids, report.decode_ids, report.decode_seconds = 10, 100, 1.0
        report.drafted, report.accepted = reports.pop()
        return "text"

    monkeypatch.setattr("simdformer.text.LanguageModel.generate", generate)
    rates = []
    for counts in ((0, 0), (90, 75)):
        reports.append(counts)
        err = command("run", "demo", "a")[2]
        rates.append(float(re.search(r"\((\d+\.\d) of", err)[1]))
    assert rates[1] == pytest.approx(rates[0] / 4, abs=0.05)


def test_run_profile_adds_a_table_of_operations(command, tiny):
    plain = command("run", tiny, "abc", "--max-new-tokens", 9)
    status, out, err = command("run", tiny, "abc", "--max-new-tokens", 9, "--profile")
    assert (status, out) == plain[:2]
    speed, _, table = err.partition("\n")
    assert speed.startswith("prefill 3 tokens")
    for name in ("prompt, 3 ids", "decode, ", "lm_head", "attention, cache", "all", "of the limit"):
        assert re.search(rf"^ *{name}", table, re.M), name


def test_the_hash_tells_runs_apart(command, tiny):
    def hash_of(*arguments):
        return re.search("logits ([0-9a-f]+)", command("run", tiny, *arguments)[2])[1]

    first = hash_of("abc", "--max-new-tokens", 4)
    assert first == hash_of("abc", "--max-new-tokens", 4)
    assert first == hash_of("abc", "--max-new-tokens", 4, "--threads", 1)
    assert first != hash_of("abd", "--max-new-tokens", 4)
    assert first != hash_of("abc", "--max-new-tokens", 4, "--dtype", "bfloat16")


def test_options_reach_the_model(command, tiny, monkeypatch):
    seen = {}

    def generate(self, prompt, **options):
        seen.update(options, prompt=prompt, max_seq_len=self.config.max_seq_len, isa=sf.isa())
        options["streamer"]("text")
        return "text"

    monkeypatch.setattr("simdformer.text.LanguageModel.generate", generate)
    options = "--temperature 0.5 --top-k 3 --top-p 0.9 --min-p 0.1 --repetition-penalty 1.2"
    options += " --draft prompt --seed 4 --stop a --stop b --max-seq-len 40 --threads 1"
    options += f" --isa {sf.isas()[0].upper()}"
    status, out, _ = command("run", tiny / "model.bin", "abc", *options.split())
    assert (status, out) == (0, "abctext\n")
    del seen["streamer"], seen["report"]
    assert seen == {
        "prompt": "abc",
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.9,
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "draft": "prompt",
        "seed": 4,
        "stop": ["a", "b"],
        "max_seq_len": 40,
        "isa": sf.isas()[0],
        "max_new_tokens": 37,  # what is left of 40 behind a prompt of 3 ids
    }
    assert sf.get_num_threads() == 1


def test_the_story_comes_out(command, shared):
    folder = shared / "data" / "stories260K"
    status, out, _ = command(
        "run", folder / "stories260K.bin", "Once upon", "--tokenizer", folder / "tok512.bin"
    )
    assert status == 0
    assert out.startswith("Once upon a time, there was a little girl named Lily.")
    assert len(out) > 500


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "{tiny}/nowhere.bin", "a"], "{tiny}/nowhere.bin: No such file or directory"),
        (["run", "{tiny}/tok300.bin", "a"], "{tiny}/tok300.bin: found hidden_dim = 0, "),
        (
            ["run", "{tiny}", "a", "--tokenizer", "{tiny}/model.bin"],
            "{tiny}/model.bin: found the length 76800 of token 1 ",
        ),
        (
            ["run", "{tiny}", "a", "--max-new-tokens", "100"],
            "--max-new-tokens is 100, but the prompt has 2 tokens and the model is made for 64",
        ),
        (
            ["run", "{tiny}", "a" * 70],
            "the prompt has 71 tokens and the model is made for 64",
        ),
        (
            ["run", "{tiny}/model.bin", "\udcff"],
            "character 1 of what was given cannot be read",
        ),
        (
            ["run", "{tiny}/model.bin", "a", "--draft", "demo"],
            "--draft: demo has a vocabulary of 1024, needs that of {tiny}/model.bin, 300",
        ),
        (
            ["run", "demo", "a", "--draft", "{tiny}/nowhere"],
            "{tiny}/nowhere: No such file or direc",
        ),
        (["info", "{tiny}/nowhere"], "{tiny}/nowhere: No such file or directory"),
        (["demo", "{tiny}/nowhere"], "{tiny}/nowhere: No such file or directory"),
        (["chat", "{tiny}/nowhere"], "{tiny}/nowhere: No such file or directory"),
        (["chat", "{tiny}"], "{tiny}: no chat template was found; a chat needs a model made for"),
        (["chat", "{bare}"], "{bare}: no tokenizer was found beside it; give one with --tokenizer"),
        (["run", "{bare}", "a"], "{bare}: no tokenizer was found beside it; give one with --tok"),
        (["trace", "{bare}", "a"], "{bare}: no tokenizer was found beside it; give one with --tok"),
        (
            ["demo", "{bare}"],
            "{bare}: no tokenizer was found beside it; the demonstration needs",
        ),
        (["trace", "{tiny}/nowhere", "a"], "{tiny}/nowhere: No such file or directory"),
        (
            ["trace", "{tiny}", "a", "--names", "layers.0.attn.patern"],
            "trace: no activation is called 'layers.0.attn.patern'; near are layers.0.attn.pattern",
        ),
        (["trace", "{tiny}", "a" * 70], "model: 71 ids are more than max_seq_len = 64"),
    ],
)
def test_an_error_is_one_line_on_stderr_and_status_2(command, tiny, bare, arguments, message):
    paths = {"tiny": tiny, "bare": bare}
    status, out, err = command(*(argument.format(**paths) for argument in arguments))
    assert (status, out) == (2, "")
    assert err.startswith(f"simdformer: error: {message.format(**paths)}")
    assert err.count("\n") == 1


@pytest.fixture(scope="module")
def bare(tiny, tmp_path_factory):
    """A model without a tokenizer."""
    folder = tmp_path_factory.mktemp("bare")
    (folder / "model.bin").symlink_to(tiny / "model.bin")
    return folder


def test_ctrl_c_is_status_130(command, tiny, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("simdformer.text.generate.generate", interrupted)
    assert command("run", tiny, "abc") == (130, "abc", "\n")


INTERRUPTED = """\
import os, signal, sys

class Interrupter:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background ignore it
sys.meta_path.insert(0, Interrupter())
sys.argv = [{program!r}, "--version"]
from simdformer.cli import main
sys.exit(main())
"""


@pytest.mark.parametrize("module", ["numpy", "simdformer.functional", "simdformer.cli.bench"])
def test_ctrl_c_while_the_command_is_imported(module):
    code = INTERRUPTED.format(module=module, program="/usr/bin/simdformer")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\n")


def test_ctrl_c_in_other_programs_is_theirs():
    code = INTERRUPTED.format(module="simdformer.functional", program="train.py")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.endswith("KeyboardInterrupt\n")


def test_which_process_is_the_command():
    """By sys.argv and sys.orig_argv."""
    for called, whole, right in (
        (["/usr/bin/simdformer", "run"], [], True),
        (["C:\\bin\\simdformer.exe".replace("\\", os.sep), "run"], [], True),
        (["-m", "run"], ["python", "-X", "dev", "-m", "simdformer", "run"], True),
        (["-m", "run"], ["python", "-m", "pytest", "run"], False),
        (["-c"], ["python", "-c", "simdformer"], False),
        ([], [], False),
    ):
        assert is_command(called, whole) == right, called


def test_bytes_of_a_token_are_those_of_the_weights_and_what_is_in_sight(tiny):
    model = sf.from_pretrained(tiny)
    config, weights = model.config, model.transformer.weights
    checkpoint = read_checkpoint(tiny)
    # the whole model, and a row of the embedding, which is the last matrix too
    read = weight_bytes(config, checkpoint.weights, None) + config.hidden_size * 4
    for position in (0, 1, 40):
        cache = cache_bytes(config, position, 4)
        assert decode_bytes(config, weights, position, 4) == read + cache
    windowed = dataclasses.replace(config, sliding_window=(None, 8, 16))
    in_sight = sum(min(40, window) for window in (40, 8, 16)) * 2 * 2 * 8 * 4
    assert decode_bytes(windowed, weights, 40, 4) == read + in_sight


def test_the_read_bandwidth_is_that_of_a_machine():
    for nbytes in (1, 1 << 16, 1 << 22):
        assert 0 < read_rate(nbytes, budget=0.01) < 1e14


# ---- info ----------------------------------------------------------------------------------------


def test_info_shows_the_library_or_a_model(command, tiny):
    status, out, _ = command("info")
    assert status == 0
    assert sf.isa() in out
    status, out, _ = command("info", tiny)
    assert status == 0
    assert dict(re.split("  +", line, maxsplit=1) for line in out.splitlines()) == {
        "format": "llama2.c",
        **{name: str(value) for name, value in TINY.items()},
        "tokenizer": "300 tokens",
        "end of text": "as the tokenizer says",
        # 300 x 32; 3 layers of 2 x 32 x 32 + 2 x 16 x 32, 3 x 44 x 32 and 2 x 32, then 32
        "embedding": "9,600 parameters, 30.3%, float32",
        "attention": "9,216 parameters, 29.1%, float32",
        "mlp": "12,672 parameters, 40.0%, float32",
        "norms": "224 parameters, 0.7%, float32",
        "lm_head": "0 parameters, 0.0%",
        "all": "31,712 parameters",
        # the embedding packed as 304 rows, gate and up as 48
        "weights": "127.4 KiB in memory, 32.9 bits a parameter",
        # 2 x 3 layers x 2 heads x 64 positions x 8 x 4 bytes
        "KV cache": "24.0 KiB in float32 (384 bytes an id), half of it in 16 bits",
    }


def test_info_needs_no_package_of_a_tokenizer(command, tiny, monkeypatch):
    def missing(checkpoint):
        raise ImportError("Reading it needs the package 'tokenizers'")

    monkeypatch.setattr("simdformer.cli.info.find_tokenizer", missing)
    status, out, err = command("info", tiny)
    assert (status, err) == (0, "")
    assert re.search(r"^tokenizer +Reading it needs the package 'tokenizers'$", out, re.M)
    assert "31,712 parameters" in out


# ---- as a process --------------------------------------------------------------------------------


def shell(line, **environment):
    """Status, stdout and stderr of a line in which `simdformer` stands for the command."""
    command = (
        f"set -o pipefail; simdformer() {{ '{sys.executable}' -m simdformer \"$@\"; }}; {line}"
    )
    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=120,
        check=False,
        env=os.environ | environment,
    )
    return done.returncode, done.stdout, done.stderr


def test_a_text_through_pipes(tiny):
    expected = sf.from_pretrained(tiny).generate("abc", max_new_tokens=3)
    status, out, err = shell(f"echo abc | simdformer run '{tiny}' --max-new-tokens 3 | cat")
    assert (status, out.decode(), err.count(b"\n")) == (0, f"abc{expected}\n", 1)


def test_a_terminal_without_unicode_gets_question_marks(tiny):
    status, out, err = shell(f"simdformer demo '{tiny}'", PYTHONIOENCODING="ascii")
    assert (status, err) == (0, b"")
    assert b"? agree" in out


@pytest.mark.parametrize("line", ["demo '{tiny}' | head -n 1", "info '{tiny}' | true"])
def test_a_closed_pipe_is_no_error(tiny, line):
    status, out, err = shell("simdformer " + line.format(tiny=tiny))
    assert (status, err) == (0, b"")
    assert out.startswith(b"One attention step" if "head" in line else b"")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("line", "status", "message"),
    [
        ("info '{tiny}' >/dev/full", 2, "simdformer: error: [Errno 28] No space left on device\n"),
        ("info '{tiny}' >&-", 0, ""),
        ("run demo <&-", 2, "simdformer: error: PROMPT is missing; write it behind MODEL"),
        (
            "run demo < <(printf 'ab\\xff')",
            2,
            "simdformer: error: character 3 of what was given cannot be read; it should",
        ),
    ],
)
def test_streams_that_are_closed_or_full(tiny, line, status, message):
    found, out, err = shell("simdformer " + line.format(tiny=tiny))
    assert (found, out) == (status, b"")
    assert err.decode().startswith(message)
    assert err.count(b"\n") == (status != 0)
