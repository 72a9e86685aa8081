"""The command line: what it prints where, and with which exit status."""

import dataclasses
import io
import re
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import simdformer as sf
from checkpoints import llama2c_bytes, random_weights, tiny_config, tiny_tokenizer, tokenizer_bytes
from conftest import same_bits
from simdformer import cli
from simdformer.bandwidth import read_bandwidth
from simdformer.demo import model as demo_model
from simdformer.demo import steps
from simdformer.demo.printing import difference
from simdformer.models import read_checkpoint
from simdformer.models.budget import cache_bytes, decode_bytes, weight_bytes


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A model of random weights with its tokenizer."""
    folder = tmp_path_factory.mktemp("tiny")
    config = tiny_config()
    (folder / "model.bin").write_bytes(
        llama2c_bytes(config, random_weights(np.random.default_rng(8), config), 0)
    )
    (folder / "tok300.bin").write_bytes(tokenizer_bytes(*tiny_tokenizer(300)))
    return folder


@pytest.fixture
def run(capsys):
    """run("run", model, ...) gives exit status, stdout and stderr, and leaves the settings as they
    were."""
    isa, threads = sf.isa(), sf.get_num_threads()

    def run(*arguments):
        try:
            status = cli.main([str(argument) for argument in arguments])
        except SystemExit as exit:  # argparse
            status = exit.code
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    yield run
    sf.set_isa(isa)
    sf.set_num_threads(threads)


# ---- run -----------------------------------------------------------------------------------------


def test_run_writes_the_text_and_then_speed_and_hash(run, tiny):
    expected = "abc" + sf.from_pretrained(tiny).generate("abc", max_new_tokens=9) + "\n"
    status, out, err = run("run", tiny, "abc", "--max-new-tokens", 9)
    assert (status, out) == (0, expected)
    assert re.fullmatch(
        r"prefill 3 tokens at [\d,]+ a second, decode \d tokens? at [\d,]+ a second "
        r"\(\d+\.\d of \d+\.\d GB/s\), "
        rf"last logits [0-9a-f]{{16}}, {sf.isa()}, \d+ threads?\n",
        err,
    )


def test_the_hash_tells_runs_apart(run, tiny):
    def hash_of(*arguments):
        return re.search("logits ([0-9a-f]+)", run("run", tiny, *arguments)[2])[1]

    first = hash_of("abc", "--max-new-tokens", 4)
    assert first == hash_of("abc", "--max-new-tokens", 4)
    assert first == hash_of("abc", "--max-new-tokens", 4, "--threads", 1)
    assert first != hash_of("abd", "--max-new-tokens", 4)
    assert first != hash_of("abc", "--max-new-tokens", 4, "--dtype", "bfloat16")


def test_options_reach_the_model(run, tiny, monkeypatch):
    seen = {}

    def generate(self, prompt, **options):
        seen.update(options, prompt=prompt, max_seq_len=self.config.max_seq_len, isa=sf.isa())
        options["streamer"]("text")
        return "text"

    monkeypatch.setattr("simdformer.text.LanguageModel.generate", generate)
    options = [
        "--temperature",
        0.5,
        "--top-k",
        3,
        "--top-p",
        0.9,
        "--min-p",
        0.1,
        "--repetition-penalty",
        1.2,
    ]
    options += [
        "--seed",
        4,
        "--stop",
        "a",
        "--stop",
        "b",
        "--max-seq-len",
        40,
        "--threads",
        1,
        "--isa",
        sf.isas()[0],
    ]
    assert run("run", tiny / "model.bin", "abc", *options)[:2] == (0, "abctext\n")
    for name, value in [
        ("prompt", "abc"),
        ("temperature", 0.5),
        ("top_k", 3),
        ("top_p", 0.9),
        ("min_p", 0.1),
    ]:
        assert seen[name] == value
    assert (seen["repetition_penalty"], seen["seed"], seen["stop"]) == (1.2, 4, ["a", "b"])
    assert (seen["max_seq_len"], seen["isa"]) == (40, sf.isas()[0])
    assert seen["max_new_tokens"] == 37  # what is left of 40 behind a prompt of 3 ids
    assert sf.get_num_threads() == 1


def test_the_story_comes_out(run, shared):
    folder = shared / "data" / "stories260K"
    status, out, _ = run(
        "run", folder / "stories260K.bin", "Once upon", "--tokenizer", folder / "tok512.bin"
    )
    assert status == 0
    assert out.startswith("Once upon a time, there was a little girl named Lily.")
    assert len(out) > 500


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "{tiny}/nowhere.bin", "a"], "{tiny}/nowhere.bin: No such file or directory"),
        (["run", "{tiny}/tok300.bin", "a"], "{tiny}/tok300.bin: header: "),
        (
            ["run", "{tiny}", "a", "--tokenizer", "{tiny}/model.bin"],
            "{tiny}/model.bin: token 1 at byte",
        ),
        (
            ["run", "{tiny}", "a", "--max-new-tokens", "100"],
            "generate: prompt of 2 ids and 100 new ones are more than",
        ),
        (["run", "{tiny}", "a", "--max-new-tokens", "0"], "generate: max_new_tokens is 0"),
        (
            ["run", "{tiny}", "a" * 70],
            "generate: prompt of 71 ids and 1 new ones are more than max_seq_len = 64",
        ),
        (
            ["run", "{tiny}", "a", "--temperature", "-1"],
            "sampling: temperature is -1.0, needed is >= 0",
        ),
        (["run", "{tiny}", "a", "--isa", "mmx"], "set_isa: name is 'mmx'"),
        (["run", "{tiny}", "a", "--threads", "0"], "set_num_threads: n is 0"),
        (["run", "{tiny}", "a", "--max-seq-len", "0"], "ModelConfig: max_seq_len is 0"),
        (["info", "{tiny}/nowhere"], "{tiny}/nowhere: No such file or directory"),
        (["demo", "{tiny}/nowhere"], "{tiny}/nowhere: No such file or directory"),
        (["chat", "{tiny}/nowhere"], "{tiny}/nowhere: No such file or directory"),
        (["chat", "{tiny}"], "{tiny}: no chat template was found; a chat needs a model made for"),
        (["trace", "{tiny}/nowhere", "a"], "{tiny}/nowhere: No such file or directory"),
        (
            ["trace", "{tiny}", "a", "--names", "layers.0.attn.patern"],
            "trace: no activation is called 'layers.0.attn.patern'; near are layers.0.attn.pattern",
        ),
        (["trace", "{tiny}", "a" * 70], "model: 71 ids are more than max_seq_len = 64"),
        (
            ["trace", "{tiny}", "a", "--out", "{tiny}/nowhere/t.npz"],
            "{tiny}/nowhere/t.npz: No such file or directory",
        ),
    ],
)
def test_an_error_is_one_line_on_stderr_and_status_2(run, tiny, arguments, message):
    status, _, err = run(*(argument.format(tiny=tiny) for argument in arguments))
    assert status == 2
    assert err.startswith(f"simdformer: error: {message.format(tiny=tiny)}")
    assert err.count("\n") == 1


def test_ctrl_c_is_status_130(run, tiny, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("simdformer.text.generate.generate", interrupted)
    assert run("run", tiny, "abc") == (130, "abc", "\n")


@pytest.mark.parametrize(
    "arguments", [[], ["fly"], ["run"], ["run", "m", "p", "--seed", "x"], ["run", "m", "--what"]]
)
def test_a_wrong_command_line_is_status_2(run, arguments):
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert "usage: simdformer" in err


@pytest.mark.parametrize("command", [[], ["run"], ["chat"], ["demo"], ["info"], ["trace"]])
def test_help_explains(run, command):
    status, out, _ = run(*command, "--help")
    assert status == 0
    assert "usage: simdformer" in out
    assert "--threads" in out or not command


def test_bytes_of_a_token_are_those_of_the_weights_and_what_is_in_sight(tiny):
    model = sf.from_pretrained(tiny)
    config, weights = model.config, model.transformer.weights
    checkpoint = read_checkpoint(tiny)
    # the whole model but for the embedding that rows are looked up in, of which one row is read
    everything = weight_bytes(config, checkpoint.weights, None)
    read = everything - weights.embed.nbytes + config.hidden_size * 4
    for position in (0, 1, 40):
        cache = cache_bytes(config, position, 4)
        assert decode_bytes(config, weights, position, 4) == read + cache
    windowed = dataclasses.replace(config, sliding_window=(None, 8, 16))
    in_sight = sum(min(40, window) for window in (40, 8, 16)) * 2 * 2 * 8 * 4
    assert decode_bytes(windowed, weights, 40, 4) == read + in_sight


def test_the_read_bandwidth_is_that_of_a_machine():
    for nbytes in (1, 1 << 16, 1 << 22):
        assert 0 < read_bandwidth(nbytes, seconds=0.01) < 1e14


# ---- chat ----------------------------------------------------------------------------------------


@pytest.fixture
def chat(run, monkeypatch):
    """chat(lines, answer) talks with the demonstration checkpoint, whose answers are made up, and
    gives status, stdout, stderr and the conversations that the model was given."""

    def chat(lines, answer, *options):
        heard = []

        def generate(self, prompt, max_new_tokens=None, *, streamer, **_):
            heard.append(self.tokenizer.decode(prompt, skip_special=True))
            try:
                for piece in answer(len(heard)):
                    streamer.put(piece)
            finally:
                streamer.end()

        monkeypatch.setattr("simdformer.text.LanguageModel.generate", generate)
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        return *run("chat", sf.demo_path(), *options), heard

    return chat


def test_a_chat_remembers_until_it_is_told_to_forget(chat):
    lines = ["hello", "", "and you?", "/reset", "hello again"]
    status, out, err, heard = chat(lines, lambda turn: ["I am ", f"number {turn}"])
    assert (status, err) == (0, "")
    assert out == "I am number 1\nI am number 2\nI am number 3\n"
    assert "hello" in heard[0]
    assert heard[1].startswith(heard[0] + "I am number 1")
    assert heard[2] == heard[0].replace("hello", "hello again")


def test_a_chat_has_a_system_message(chat):
    *_, heard = chat(["hello", "/reset", "hello"], lambda turn: "a", "--system", "Be brief.")
    assert heard[0].index("Be brief.") < heard[0].index("hello")
    assert heard[1] == heard[0]


def test_ctrl_c_stops_the_answer_only(chat):
    def interrupted(turn):
        yield "I was say"
        if turn == 1:
            raise KeyboardInterrupt
        yield "ing"

    status, out, err, heard = chat(["one", "two"], interrupted)
    assert (status, out, err) == (0, "I was say\nI was saying\n", "")
    assert "I was say" in heard[1]


def test_what_a_chat_cannot_take_is_one_line_and_forgotten(chat):
    def too_long(turn):
        if turn == 2:
            raise ValueError("generate: prompt of 300 ids\nis too long")
        return "fine"

    status, out, err, heard = chat(["one", "two", "three"], too_long)
    assert (status, out) == (0, "fine\n\nfine\n")
    assert err == "generate: prompt of 300 ids is too long; /reset begins anew\n"
    assert "two" not in heard[2]


def test_the_prompt_of_a_terminal(run, monkeypatch):
    """Ctrl-C begins the line anew, Ctrl-D ends."""
    typed = iter([KeyboardInterrupt, "/reset", EOFError])

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    def ask(prompt):
        assert prompt == "> "
        line = next(typed)
        if isinstance(line, str):
            return line
        raise line

    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("builtins.input", ask)
    assert run("chat", sf.demo_path()) == (0, "\n\n", "")
    assert list(typed) == []


def test_a_chat_with_a_model(run, monkeypatch):
    """Nothing made up: what the model says to Llama 3's template."""
    model = sf.from_pretrained(sf.demo_path())
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\n"))
    expected = model.chat([{"role": "user", "content": "hello"}], 5)
    assert run("chat", sf.demo_path(), "--max-new-tokens", 5) == (0, expected + "\n", "")


# ---- trace ---------------------------------------------------------------------------------------


def test_trace_shows_every_activation(run, tiny):
    model = sf.from_pretrained(tiny)
    _, trace = model.run_with_cache(model.tokenizer.encode("abc"))
    status, out, err = run("trace", tiny, "abc")
    assert (status, err) == (0, "")
    head, *rows = (line.split() for line in out.splitlines())
    assert head == ["name", "shape", "dtype", "rms", "min", "max"]
    assert [row[0] for row in rows] == list(trace)
    for name, shape, dtype, *numbers in rows:
        finite = trace[name][np.isfinite(trace[name])]
        assert shape == "x".join(map(str, trace[name].shape))
        assert dtype == "float32"
        expected = [np.sqrt(np.mean(finite**2)), finite.min(), finite.max()]
        np.testing.assert_allclose(np.array(numbers, float), expected, rtol=1e-3, atol=1e-6)


def test_trace_writes_a_file(run, tiny, tmp_path):
    model = sf.from_pretrained(tiny)
    ids = model.tokenizer.encode("abc")
    file = tmp_path / "some file"
    names = ["layers.*.attn.pattern", "logits"]
    status, out, err = run("trace", tiny, "abc", "--out", file, "--names", *names)
    assert (status, out) == (0, "")
    assert err.startswith(f"{file}: 4 arrays, ")
    _, trace = model.run_with_cache(ids, names)
    with np.load(file) as found:
        assert found["ids"].tolist() == ids
        assert set(found.files) == {*trace, "ids"}
        assert all(same_bits(found[name], trace[name]) for name in trace)


# ---- info ----------------------------------------------------------------------------------------


def test_info_shows_the_library_or_a_model(run, tiny):
    status, out, _ = run("info")
    assert status == 0
    assert sf.isa() in out
    status, out, _ = run("info", tiny)
    assert status == 0
    assert dict(re.split("  +", line, maxsplit=1) for line in out.splitlines()) == {
        "format": "llama2.c",
        **{name: str(value) for name, value in vars(tiny_config()).items()},
        "dtype": "float32",
        "tokenizer": "300 tokens",
        "end of text": "as the tokenizer says",
        # 300 x 32; 3 layers of 2 x 32 x 32 + 2 x 16 x 32, 3 x 44 x 32 and 2 x 32, then 32
        "embedding": "9,600 parameters, 30.3%",
        "attention": "9,216 parameters, 29.1%",
        "mlp": "12,672 parameters, 40.0%",
        "norms": "224 parameters, 0.7%",
        "lm_head": "0 parameters, 0.0%",
        "all": "31,712 parameters",
        # the tied embedding once more, packed as 304 rows; gate and up packed as 48 rows
        "weights": "164.9 KiB",
        # 2 x 3 layers x 2 heads x 64 positions x 8 x 4 bytes
        "KV cache": "24.0 KiB in float32 (384 bytes an id), half of it in 16 bits",
    }


# ---- demo ----------------------------------------------------------------------------------------

STEPS = steps.STEPS


def test_the_demonstration_agrees(run, isa, shared):
    status, out, err = run("demo", shared / "data" / "stories260K" / "stories260K.bin")
    assert (status, err) == (0, "")
    assert out.count("✓ agree") == len(STEPS) + 2
    assert "✗" not in out
    assert "Once upon a time, there was a little girl named Lily." in out
    assert out.endswith("All checks agree.\n")
    for step in STEPS:
        assert step.title in out
    assert max(map(len, out.splitlines())) <= 120


def test_the_demonstration_shows_the_head_that_looks_at_what_is_said(run, shared):
    """The row of the picture, computed here from the whole trace."""
    path = shared / "data" / "stories260K" / "stories260K.bin"
    model = sf.from_pretrained(path)
    ids = model.tokenizer.encode(demo_model.LOOKUP)
    logits, trace = model.run_with_cache(ids)
    places = [at for at, id in enumerate(ids) if id == int(logits[-1].argmax())] or [
        at for at, id in enumerate(ids) if id != 1
    ]
    best = max(
        (float(trace[f"layers.{layer}.attn.pattern"][head, -1, places].sum()), layer, head)
        for layer in range(5)
        for head in range(8)
    )
    _, out, _ = run("demo", path)
    assert f"Layer {best[1]}, head {best[2]}: {best[0]:.0%} of the last token's attention" in out
    assert f"    | {demo_model.LOOKUP} ->" in out


def test_without_an_argument_the_package_s_own_model_is_asked(run):
    """What it answers is for the test of that checkpoint to say."""
    status, out, _ = run("demo")
    assert status in (0, 1)
    assert "model = sf.from_pretrained(sf.demo_path())" in out
    assert f"it should say {demo_model.ANSWER}" in out
    assert out.count("✓ agree") == len(STEPS) + 2 + (status == 0)


def test_a_wrong_answer_is_told(run, monkeypatch):
    monkeypatch.setattr(demo_model, "ANSWER", "forty-two")
    status, out, _ = run("demo")
    assert status == 1
    assert "✗ DIFFER" in out


def test_a_model_without_a_tokenizer_has_no_story(run, tiny, tmp_path):
    (tmp_path / "model.bin").write_bytes((tiny / "model.bin").read_bytes())
    status, _, err = run("demo", tmp_path)
    assert (status, err.count("\n")) == (2, 1)
    assert "no tokenizer was found beside it" in err


@pytest.mark.parametrize("number", range(len(STEPS)))
def test_every_check_of_the_demonstration_can_fail(run, monkeypatch, tiny, number):
    """One value off by 1e-3 on the learner's side, in each step by turns."""
    step = STEPS[number]
    name = step.results.split()[0]
    wrong = steps.Step(
        step.title,
        f"{textwrap.dedent(step.numpy)}\n{name} = {name} + 0.001",
        step.kernel,
        step.results,
    )
    monkeypatch.setattr(steps, "STEPS", [*STEPS[:number], wrong, *STEPS[number + 1 :]])
    status, out, _ = run("demo", tiny)
    assert status == 1
    assert "✗ DIFFER" in out
    assert out.endswith("A CHECK FAILED: look for ✗ above.\n")


def test_a_model_that_depends_on_its_cache_is_found_out(run, monkeypatch, tiny):
    from simdformer.models import KVCache

    write = KVCache.write

    def forgetful(self, layer, key, value):
        keys, values = write(self, layer, key, value)
        return keys, values * 1.01

    monkeypatch.setattr(KVCache, "write", forgetful)
    status, out, _ = run("demo", tiny)
    assert status == 1
    assert "✗ DIFFER" in out


def test_differences_see_what_is_not_a_number():
    x = np.array([1.0, -np.inf, 3.0])
    assert difference(x, x) == 0
    assert difference(x, x + np.array([0, 0, 0.5])) == 0.5
    assert difference(x, [1.0, 2.0, 3.0]) == np.inf
    assert difference(x, [1.0, -np.inf, np.nan]) == np.inf
    assert difference(x, x[:2]) == np.inf


# ---- as a process --------------------------------------------------------------------------------


def process(*arguments, **options):
    command = [sys.executable, "-m", "simdformer", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, timeout=120, check=False, **options)


def test_as_a_process(tiny):
    done = process("run", tiny, "abc", "--max-new-tokens", 3)
    assert done.returncode == 0
    assert done.stdout.startswith(b"abc")
    done = process("run", tiny / "nowhere")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.count(b"\n") == 1


def test_a_terminal_without_unicode_gets_question_marks(tiny):
    done = process("demo", tiny, env={"PYTHONIOENCODING": "ascii", "PATH": "/usr/bin:/bin"})
    assert done.returncode == 0
    assert b"? agree" in done.stdout


def test_a_closed_pipe_is_no_error(tiny):
    command = f"'{sys.executable}' -m simdformer demo '{tiny}' | head -n 1"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, timeout=120, check=False
    )
    assert done.stdout.startswith(b"One attention step")
    assert done.stderr == b""
