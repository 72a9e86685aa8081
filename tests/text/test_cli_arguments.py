"""The command line before anything runs: which model is meant, the prompt, options, help."""

import io

import pytest

import simdformer as sf
from simdformer.text import Sampler


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def nothing_is_loaded(monkeypatch):
    def load(*_, **__):
        raise AssertionError("a model was asked for")

    monkeypatch.setattr("simdformer.text.from_pretrained", load)
    monkeypatch.setattr("simdformer.cli.info.read_checkpoint", load)


# ---- help ----------------------------------------------------------------------------------------


def test_without_a_command_there_is_a_page_to_read(command):
    status, out, err = command()
    assert (status, err) == (0, "")
    assert out == command("--help")[1]
    for name in ("bench", "chat", "check", "demo", "info", "learn", "run", "trace"):
        assert f"\n    {name} " in out
    assert 'simdformer run demo "Once upon a time"' in out
    assert out.index("first steps:") < out.index("\ncommands:")
    assert max(map(len, out.splitlines())) <= 80


def test_the_version(command):
    assert command("--version") == (0, f"simdformer {sf.__version__}\n", "")


@pytest.mark.parametrize(
    ("name", "usage"),
    [
        ("bench", "bench"),
        ("chat", "chat MODEL"),
        ("check", "check FILE [NAME]"),
        ("demo", "demo [MODEL]"),
        ("info", "info [MODEL]"),
        ("learn", "learn"),
        ("run", "run MODEL [PROMPT]"),
        ("trace", "trace MODEL [PROMPT]"),
    ],
)
@pytest.mark.parametrize("columns", ["40", "80"])
def test_help_explains(command, monkeypatch, name, usage, columns):
    monkeypatch.setenv("COLUMNS", columns)
    status, out, _ = command(name, "--help")
    assert status == 0
    assert out.startswith(f"usage: simdformer {usage} [options]\n")
    assert "--threads" in out


# ---- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fly"], "COMMAND: invalid choice: 'fly' (choose from"),
        (["run"], "the following arguments are required: MODEL\n"),
        (["run", "m", "--what"], "unrecognized arguments: --what (-- goes before a"),
        (["run", "m", "a\nb", "\x1b[2J"], "unrecognized arguments: \ufffd[2J (-- goes"),
        (["run", "m", "p", "--dtype", "int8"], "--dtype: invalid choice: 'int8' (choose from"),
        (["run", "m", "p", "--tokenizer", "no"], "--tokenizer: there is no file 'no'\n"),
        (["run", "m", "p", "--stop", ""], "--stop: found '', needs a text that is not empty\n"),
        (
            ["run", "m", "p", "--isa", "mmx"],
            "--isa: found 'mmx', needs what this machine ru",
        ),
        (["info", "m", "--threads", "0"], "--threads: found '0', needs 1 to 1024\n"),
        (
            ["chat", "m", "--temperature", "-1"],
            "--temperature: found '-1', needs a number >= 0",
        ),
        (
            ["chat", "m", "--top-k", str(2**70)],
            f"--top-k: found '{2**70}', needs a whole number",
        ),
        (["trace", "m", "p", "--max-seq-len", "0"], "--max-seq-len: found '0', needs a whole"),
        (["trace", "m", "p", "--out", "no/t.npz"], "--out: there is no directory 'no'\n"),
        (["trace", "m", "p", "--out", "/"], "--out: found '/', needs a file; this is a dir"),
        (["check", "f", "--seconds", "nan"], "--seconds: found 'nan', needs a number > 0\n"),
        (["check", "f", "--seconds", "0"], "--seconds: found '0', needs a number > 0\n"),
        (["bench", "--isa", "mmx"], "--isa: found 'mmx', needs what this machine runs: bas"),
        (["learn", "--out", "no/file.py"], "--out: there is no directory 'no'\n"),
    ],
)
def test_a_wrong_command_line_is_told_before_anything_happens(
    command, nothing_is_loaded, arguments, message
):
    status, out, err = command(*arguments)
    assert (status, out) == (2, "")
    who = "simdformer" if arguments == ["fly"] else f"simdformer {arguments[0]}"
    assert err.startswith(f"{who}: error: {message}")
    assert err.splitlines()[1].startswith(f"usage: {who} ")
    assert err.count("\n") == 2


WHOLE = ["-1", "0", "1", "2.5", "x", "", str(2**63 - 1), str(2**63), "9" * 5000]
NUMBERS = ["-1", "-0.1", "0", "0.5", "1", "1.5", "nan", "inf", "1e400", "x", ""]


@pytest.mark.parametrize(
    ("name", "kind", "values"),
    [
        ("temperature", float, NUMBERS),
        ("top_p", float, NUMBERS),
        ("min_p", float, NUMBERS),
        ("repetition_penalty", float, NUMBERS),
        ("top_k", int, WHOLE),
        ("seed", int, [value for value in WHOLE if len(value) < 19]),  # any number in Python
    ],
)
def test_the_command_line_takes_what_sampling_takes(command, monkeypatch, name, kind, values):
    def load(options):
        raise ValueError("taken")

    monkeypatch.setattr("simdformer.cli._shared.load", load)
    option = f"--{name.replace('_', '-')}"
    for value in values:
        try:
            Sampler(**{name: kind(value)})
            expected = "simdformer: error: taken\n"
        except ValueError:
            expected = f"simdformer run: error: {option}: found '{value[:50]}"
        _, _, err = command("run", "m", "p", f"{option}={value}")
        assert err.startswith(expected), value


# ---- the prompt ----------------------------------------------------------------------------------


@pytest.mark.sampled(3)
@pytest.mark.parametrize("arguments", [[], ["-"]])
@pytest.mark.parametrize("ends", ["", "\n", "\n\n"])
def test_a_prompt_from_standard_input(command, tiny, monkeypatch, arguments, ends):
    given = command("run", tiny, "a b\nc", "--max-new-tokens", 5)
    monkeypatch.setattr("sys.stdin", io.StringIO("a b\nc" + ends))
    piped = command("run", tiny, *arguments, "--max-new-tokens", 5)
    assert piped[:2] == given[:2]
    monkeypatch.setattr("sys.stdin", io.StringIO("a b\nc" + ends))
    assert command("trace", tiny, *arguments) == command("trace", tiny, "a b\nc")


@pytest.mark.parametrize("name", ["run", "trace"])
def test_a_terminal_is_not_waited_for(command, monkeypatch, nothing_is_loaded, name):
    monkeypatch.setattr("sys.stdin", Terminal("typed\n"))
    status, out, err = command(name, "demo")
    assert (status, out) == (2, "")
    assert err.startswith('simdformer: error: PROMPT is missing; write it behind MODEL ("Once upon')


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "demo", "-"], "PROMPT is missing; write it behind MODEL"),
        (["trace", "demo"], "PROMPT is missing; write it behind MODEL"),
        (["chat", "demo"], "standard input is closed, and a chat reads from it"),
    ],
)
def test_standard_input_may_be_closed(command, monkeypatch, nothing_is_loaded, arguments, message):
    monkeypatch.setattr("sys.stdin", None)
    status, out, err = command(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith(f"simdformer: error: {message}")


def test_a_dash_reads_what_is_typed(command, tiny, monkeypatch):
    monkeypatch.setattr("sys.stdin", Terminal("abc\n"))
    assert command("run", tiny, "-", "--max-new-tokens", 5)[1].startswith("abc")


@pytest.mark.parametrize("name", ["look", "run", "trace"])
@pytest.mark.parametrize(
    ("arguments", "prompt"),
    [
        (["a b", "--adapter", "mine"], "a b"),
        (["--adapter", "mine", "a b"], "a b"),
        (["--adapter", "mine", "a", "--max-seq-len", "5"], "a"),
        (["--adapter", "a", "a"], "a"),
        (["--adapter", "mine", ""], ""),
        (["--adapter", "mine", "-"], "-"),
        (["--adapter", "mine", "- and more"], "- and more"),
        (["--adapter", "mine", "--", "-a"], "-a"),
        (["--adapter", "mine"], None),
    ],
)
def test_a_prompt_may_stand_behind_options(command, monkeypatch, name, arguments, prompt):
    def prompt_of(options):
        raise ValueError(f"model {options.model}, prompt {options.prompt!r}")

    monkeypatch.setattr("simdformer.cli._shared.prompt_of", prompt_of)
    expected = f"simdformer: error: model demo, prompt {prompt!r}\n"
    assert command(name, "demo", *arguments) == (2, "", expected)


@pytest.mark.parametrize(
    ("arguments", "unknown"),
    [
        (["--seed", "1", "a", "b"], "b"),
        (["a", "--seed", "1", "b"], "b"),
        (["--seed", "1", "--what"], "--what"),
        (["--seed", "1", "--"], "--"),
    ],
)
def test_what_is_left_over_behind_options_is_told(command, nothing_is_loaded, arguments, unknown):
    status, out, err = command("run", "demo", *arguments)
    assert (status, out) == (2, "")
    assert f"run: error: unrecognized arguments: {unknown} (--" in err


# ---- the model -----------------------------------------------------------------------------------


def test_demo_is_a_model(command):
    model = sf.from_pretrained(sf.demo_path())
    text = model.generate("Once upon", max_new_tokens=5)
    status, out, _ = command("run", "demo", "Once upon", "--max-new-tokens", 5)
    assert (status, out) == (0, f"Once upon{text}\n")
    assert command("info", "demo") == command("info", sf.demo_path())
    assert command("trace", "demo", "Once") == command("trace", sf.demo_path(), "Once")


def test_a_name_of_the_hub_tells_how_to_get_it(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    for name in ("run", "trace"):
        status, out, err = command(name, "Qwen/Qwen3-0.6B", "hello")
        assert (status, out) == (2, "")
        assert err.startswith("simdformer: error: Qwen/Qwen3-0.6B: no such file or directory, and")
        assert "`hf download Qwen/Qwen3-0.6B`" in err
        assert err.count("\n") == 1
