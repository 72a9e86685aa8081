"""`simdformer chat`, a conversation, and `simdformer trace`, every activation of a prompt."""

import io
import re

import numpy as np
import pytest

import simdformer as sf
from conftest import same_bits
from simdformer.cli import _output as output
from simdformer.cli import chat as chat_command
from simdformer.models import PagedKVCache


class Terminal(io.StringIO):
    def isatty(self):
        return True


# ---- chat ----------------------------------------------------------------------------------------


@pytest.fixture
def chat(command, monkeypatch):
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
        return *command("chat", sf.demo_path(), *options), heard

    return chat


def test_a_chat_remembers_until_it_is_told_to_forget(chat):
    lines = ["hello", "", "and you?", "/reset", " hello again", "/exit", "not heard"]
    status, out, err, heard = chat(lines, lambda turn: ["I am ", f"number {turn}"])
    assert (status, err) == (0, "")
    assert out == "I am number 1\nI am number 2\nI am number 3\n"
    assert "hello" in heard[0]
    assert heard[1].startswith(heard[0] + "I am number 1")
    assert heard[2] == heard[0].replace("hello", "hello again")


def test_a_chat_reads_what_was_said_once(command, monkeypatch):
    """In whole pages of 32 ids: the second turn begins where the first ended."""
    lengths = []
    open_cache = PagedKVCache.open

    def opened(self, ids, **options):
        sequence = open_cache(self, ids, **options)
        lengths.append((sequence.length, len(ids)))
        return sequence

    monkeypatch.setattr(PagedKVCache, "open", opened)
    long = "Once upon a time there was a little girl named Lily who had a red kite. " * 4
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{long}\nand then?\n"))
    status, _, err = command("chat", sf.demo_path(), "--max-new-tokens", "40")
    assert (status, err) == (0, "")
    (none, first), (kept, second) = lengths
    assert none == 0
    assert kept > first - 32
    assert kept > second - 64


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


def test_the_prompt_of_a_terminal(command, monkeypatch):
    """Ctrl-C begins the line anew, Ctrl-D ends."""
    typed = iter([KeyboardInterrupt, "/reset", EOFError])

    def ask(prompt):
        assert prompt == "> "
        line = next(typed)
        if isinstance(line, str):
            return line
        raise line

    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("builtins.input", ask)
    greeting = f"Write a line, {sf.demo_path()} answers. /help tells more.\n"
    assert command("chat", sf.demo_path()) == (0, "\n\n", greeting)
    assert list(typed) == []


def test_a_chat_with_a_model(command, monkeypatch):
    """Nothing made up: what the model says to Llama 3's template."""
    model = sf.from_pretrained(sf.demo_path())
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\n"))
    expected = model.chat([{"role": "user", "content": "hello"}], 5)
    assert command("chat", sf.demo_path(), "--max-new-tokens", 5) == (0, expected + "\n", "")


def test_a_chat_with_a_draft(command, monkeypatch):
    said = []
    for draft in ([], ["--draft", "demo"]):
        monkeypatch.setattr("sys.stdin", io.StringIO("hello\n"))
        said.append(command("chat", "demo", "--max-new-tokens", 20, *draft))
    assert said[0][:2] == said[1][:2]
    assert re.fullmatch(r"\d+ of \d+ drafted tokens accepted\n", said[1][2])


EVIL = "a\x1b]0;title\x07\x9b2Jb\tc\r\n"
HARMLESS = "a\ufffd]0;title\ufffd\ufffd2Jb\tc\ufffd\n"


def test_commands_of_a_chat(chat):
    lines = ["/help", "/what", "/reset it", " /what", "hello"]
    status, out, err, heard = chat(lines, lambda turn: "fine")
    unknown = "no such command, there are /help, /reset, /exit; a space in front makes it text"
    assert (status, out) == (0, "fine\nfine\n")
    assert err.splitlines() == [
        "/help    shows this",
        "/reset   forgets what was said",
        "/exit    ends the conversation, and so does Ctrl-D",
        "Ctrl-C   stops an answer",
        f"/what: {unknown}",
        f"/reset it: {unknown}",
    ]
    assert "/what" in heard[0]
    assert "/help" not in heard[1]


def test_what_is_no_text_is_one_line_and_forgotten(chat):
    status, out, err, heard = chat(["hello", "caf\udce9"], lambda turn: "fine")
    assert (status, out, len(heard)) == (0, "fine\n", 1)
    assert err.startswith(
        "character 4 of what was given cannot be read; it should be UTF-8; /reset"
    )


@pytest.mark.parametrize("writes", ["run", "chat"])
def test_what_a_model_says_cannot_drive_the_terminal(writes, monkeypatch):
    """Escape sequences show as U+FFFD; a file gets every character as it is."""
    for stream, wanted in ((io.StringIO(), EVIL), (Terminal(), HARMLESS)):
        monkeypatch.setattr("sys.stdout", stream)
        if writes == "run":
            output.write(EVIL)
        else:
            streamer = chat_command.Kept()
            streamer.put(EVIL)
            assert streamer.text == EVIL
        assert stream.getvalue() == wanted


def test_nor_can_an_error_message():
    assert output.describe(ValueError("a\x1b[2J\n b")) == "a\ufffd[2J b"


# ---- trace ---------------------------------------------------------------------------------------


def test_trace_shows_every_activation(command, tiny):
    model = sf.from_pretrained(tiny)
    _, trace = model.run_with_cache(model.tokenizer.encode("abc"))
    status, out, err = command("trace", tiny, "abc")
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


def test_trace_writes_a_file(command, tiny, tmp_path):
    model = sf.from_pretrained(tiny)
    ids = model.tokenizer.encode("abc")
    file = tmp_path / "some file"
    names = ["layers.*.attn.pattern", "logits"]
    status, out, err = command("trace", tiny, "abc", "--out", file, "--names", *names)
    assert (status, out) == (0, "")
    assert err.startswith(f"{file}: 4 arrays, ")
    _, trace = model.run_with_cache(ids, names)
    with np.load(file) as found:
        assert found["ids"].tolist() == ids
        assert set(found.files) == {*trace, "ids", "tokens", "model"}
        assert all(same_bits(found[name], trace[name]) for name in trace)
    assert sf.Trace.load(file).tokens == trace.tokens


# ---- quantize ------------------------------------------------------------------------------------


def test_a_model_is_written_in_few_bits(command, tmp_path):
    out = tmp_path / "demo.gguf"
    status, printed, err = command("quantize", "demo", out, "--type", "q4_0")
    assert (status, err) == (0, "")
    lines = [line.split() for line in printed.splitlines()]
    assert lines[0] == ["tensors", "types", "error"]
    kinds = ["token_embd", "attn_q", "attn_k", "attn_v", "attn_output"]
    assert [line[0] for line in lines[1:6]] == kinds
    assert all(line[1] == "q4_0" and 6 < float(line[2].rstrip("%")) < 10 for line in lines[1:6])
    size = out.stat().st_size
    bits = 8 * size / 1_443_456
    assert printed.splitlines()[-1] == f"{out}: {size / 1024:.1f} KiB, {bits:.3g} bits a parameter"
    assert 4.5 < bits < 5.5
    status, shown, _ = command("info", out)
    assert status == 0
    assert re.search(r"^attention .*, q4_0$", shown, re.M)
    assert re.search(r"^lm_head .*, q8_0$", shown, re.M)
    expected = sf.from_pretrained(out).generate("Once", max_new_tokens=4)
    assert command("run", out, "Once", "--max-new-tokens", 4)[1] == f"Once{expected}\n"


def test_a_file_is_replaced_only_where_that_is_wanted(command, tmp_path):
    out = tmp_path / "demo.gguf"
    out.write_bytes(b"something else")
    status, _, err = command("quantize", "demo", out)
    assert (status, err) == (2, f"simdformer: error: {out} exists; --force replaces it\n")
    assert out.read_bytes() == b"something else"
    assert command("quantize", "demo", out, "--force", "--no-tokenizer")[0] == 0
    status, shown, _ = command("info", out)
    assert re.search(r"^tokenizer +none found$", shown, re.M)
