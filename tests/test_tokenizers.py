"""Tokenizers of published checkpoints, against the libraries that they come from."""

import base64
import sys

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st

import simdformer as sf
from simdformer.models import CheckpointError
from simdformer.text.tiktoken_tokenizer import TiktokenTokenizer

NASTY = [
    "",
    " ",
    "\n",
    "hello world!",
    "   two  spaces   ",
    " " * 200 + "x",
    "\n\n\ttabs and\r\nlines\r\n\r\n",
    "\0 zero \0\0",
    "I'll say: IT'S 12345678901234567890, 3.14 and 1e-5",
    "<|begin_of_text|><|eot_id|><|endoftext|><|im_start|>user<|im_end|></s><s><think>",
    "< |eot_id|> <|eot_id| >",
    "naïve café — “quotes” … €",
    "日本語 and العربية, עברית, हिन्दी, ไทย, 한국어",
    "👩‍👩‍👧‍👦 family 🏳️‍🌈 🇩🇪",
    "e\u0301 a\u0308\u0323 \u1e69 \u212b combining",
    "\ufeff mark, \u202e override, \u00a0 no break, \u2028 line, \U0010ffff last, \x1c separator",
    "\ufffd",
    "def f(x):\n    return x  # 100%\n\n\n",
    "aA" * 500,
    ("The quick brown fox, 42 times. " * 400)[:10000],
]

text_of_all_kinds = st.text(max_size=60) | st.text(
    st.sampled_from("ab' \n\r\t1239.!é日👩\u200d\u0301<|>"), max_size=60
)


@pytest.fixture(scope="module")
def llama3(shared):
    return sf.tokenizer.load(shared / "data" / "llama3" / "tokenizer.model")


def ids_around(tokenizer):
    """Any ids, those of bytes and those around the end of the vocabulary more often."""
    size = tokenizer.vocab_size
    return st.lists(st.integers(0, 300) | st.integers(size - 300, size + 9) | st.integers(0, size))


def check_streams(tokenizer, data):
    """A stream gives what decode gives, and of a text only whole characters."""
    ids = data.draw(ids_around(tokenizer))
    stream = tokenizer.stream()
    pieces = [*map(stream.put, ids), stream.flush()]
    assert "".join(pieces) == tokenizer.decode(ids, skip_special=True)

    text = data.draw(text_of_all_kinds)
    stream, shown = tokenizer.stream(), ""
    for id in tokenizer.encode(text):
        shown += stream.put(id)
        assert text.startswith(shown)
    assert stream.flush() == ""
    assert shown == text


def check_refusals(tokenizer):
    with pytest.raises(ValueError, match=r"encode: text\[3\] is the lone surrogate"):
        tokenizer.encode("ab \ud800")
    with pytest.raises(TypeError, match="encode: text is bytes, needed is str"):
        tokenizer.encode(b"ab")
    with pytest.raises(IndexError, match="decode: id is -1, needed is an id >= 0"):
        tokenizer.decode([-1])
    assert tokenizer.decode([tokenizer.vocab_size, 10**9]) == ""
    assert isinstance(tokenizer, sf.tokenizer.Tokenizer)


def check_damaged(file, message):
    with pytest.raises(CheckpointError, match=message) as caught:
        sf.tokenizer.load(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert "\n" not in str(caught.value)


# ---- tiktoken's format ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiktoken_llama3(shared):
    """Made by tiktoken's own means from the same file, special tokens as Meta publishes them."""
    lines = (shared / "data" / "llama3" / "tokenizer.model").read_bytes().split()
    ranks = {
        base64.b64decode(token): int(rank)
        for token, rank in zip(lines[::2], lines[1::2], strict=True)
    }
    special = [
        "<|begin_of_text|>",
        "<|end_of_text|>",
        *(f"<|reserved_special_token_{i}|>" for i in range(4)),
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|reserved_special_token_4|>",
        "<|eot_id|>",
        *(f"<|reserved_special_token_{i}|>" for i in range(5, 251)),
    ]
    split = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+"
        r"[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    return tiktoken.Encoding(
        "llama3",
        pat_str=split,
        mergeable_ranks=ranks,
        special_tokens={name: len(ranks) + i for i, name in enumerate(special)},
        explicit_n_vocab=128256,
    )


def test_llama3_known_ids(llama3):
    prompt = "the answer to the ultimate question of life, the universe, and everything is "
    ids = [128000, 1820, 4320, 311, 279, 17139, 3488, 315, 2324, 11, 279, 15861, 11, 323, 4395]
    assert llama3.encode(prompt) == [*ids, 374, 220]
    assert llama3.encode("hello world!", bos=False) == [15339, 1917, 0]
    assert llama3.decode([2983]) == "42"
    assert llama3.vocab_size == 128256
    assert llama3.bos_id == 128000
    assert llama3.eos_ids == (128001, 128009)
    assert llama3.encode("") == [128000]
    assert llama3.encode("", bos=False) == []
    check_refusals(llama3)


@pytest.mark.parametrize("text", NASTY)
@pytest.mark.parametrize("special", [False, True])
def test_llama3_encodes_as_tiktoken_does(llama3, tiktoken_llama3, text, special):
    allowed = "all" if special else set()
    want = tiktoken_llama3.encode(text, allowed_special=allowed, disallowed_special=())
    assert llama3.encode(text, bos=False, special=special) == want
    assert llama3.encode(text, special=special) == [128000, *want]
    assert llama3.decode(want) == text == tiktoken_llama3.decode(want)
    plain = [id for id in want if id < 128000]
    assert llama3.decode(want, skip_special=True) == tiktoken_llama3.decode(plain)


@given(data=st.data())
def test_llama3_any_ids_decode_as_with_tiktoken(llama3, tiktoken_llama3, data):
    ids = [id for id in data.draw(ids_around(llama3)) if id < 128256]
    assert llama3.decode(ids) == tiktoken_llama3.decode(ids)


@given(data=st.data())
def test_llama3_streams(llama3, data):
    check_streams(llama3, data)


def test_llama3_special_tokens_have_their_ids(llama3):
    for id, name in {
        128000: "<|begin_of_text|>",
        128001: "<|end_of_text|>",
        128002: "<|reserved_special_token_0|>",
        128006: "<|start_header_id|>",
        128007: "<|end_header_id|>",
        128008: "<|reserved_special_token_4|>",
        128009: "<|eot_id|>",
        128010: "<|reserved_special_token_5|>",
        128255: "<|reserved_special_token_250|>",
    }.items():
        assert llama3.encode(name, bos=False, special=True) == [id]
        assert llama3.decode([id]) == name
        assert llama3.decode([id], skip_special=True) == ""
        assert len(llama3.encode(name, bos=False)) > 1


def test_llama3_runs_too_long_for_the_regular_expression(llama3, tiktoken_llama3):
    """Cut as Llama 3 cuts them: after 25,000 of a kind, and after 400,000 characters."""
    for character in " a":
        encode = tiktoken_llama3.encode
        want = encode(character * 25000) * 2 + encode(character)
        assert llama3.encode(character * 50001, bos=False) == want
    text = "word " * 240_000  # 1.2 million characters
    parts = tiktoken_llama3.encode("word " * 80_000) * 3
    assert llama3.encode(text, bos=False) == parts
    assert llama3.decode(llama3.encode(" " * 1_200_000, bos=False)) == " " * 1_200_000


def test_tiktoken_is_needed_for_encoding_only(shared, monkeypatch):
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    tokenizer = TiktokenTokenizer([bytes([byte]) for byte in range(256)])
    assert tokenizer.decode([104, 105]) == "hi"
    with pytest.raises(ImportError, match=r"needs the package 'tiktoken' .*simdformer\[models\]"):
        tokenizer.encode("hi")


def line(token, rank):
    return base64.b64encode(token) + b" %d\n" % rank


BYTES = [line(bytes([byte]), byte) for byte in range(256)]
MODEL = b"".join(BYTES) + line(b"hi", 256)


def test_a_written_tiktoken_file_is_read(tmp_path):
    file = tmp_path / "tokenizer.model"
    for data in (MODEL, MODEL[:-1]):
        file.write_bytes(data)
        for path in (file, str(file), tmp_path):
            assert sf.tokenizer.load(path).encode("hi!") == [257, 256, 33]
    # No copy of the first file is kept anywhere.
    file.write_bytes(MODEL.replace(line(b"hi", 256), line(b"lo", 256)))
    assert sf.tokenizer.load(file).encode("hi!") == [257, 104, 105, 33]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"\n", r"line 1: found b'', needed are a token in base64, a space, its rank"),
        (MODEL[:-3], r"line 257: rank 2 found, needed is 256"),
        (MODEL[:-5], r"line 257: found b'aGk='"),
        (MODEL[:-7], r"line 257: found b'aG'"),
        (MODEL[: len(MODEL) // 2].rpartition(b"\n")[0], r"12\d of the 256 single bytes"),
        (MODEL.replace(b"aGk=", b"aG!="), "line 257: found b'aG!= 256'"),
        (MODEL.replace(b"aGk=", b"aGkaa"), r"line 257: the token is no base64 \("),
        (MODEL.replace(b"aGk= 256", b"aGk= 0256"), "line 257: found"),
        (MODEL.replace(b"aGk= 256", b"aGk= -256"), "line 257: found"),
        (MODEL.replace(b"aGk= 256", b"aGk=  256"), "line 257: found"),
        (MODEL.replace(b"aGk= 256", b"aGk= 256\r"), "line 257: found"),
        (MODEL.replace(b"aGk= 256", b"aGk= " + b"9" * 99), r"line 257: found b'.{40}\.\.\.'"),
        (MODEL.replace(b"aGk= 256", b"aGk= 255"), "line 257: rank 255 found, needed is 256"),
        (MODEL.replace(b"aGk= 256", b"aGk= 258"), "line 257: rank 258 found, needed is 256"),
        (MODEL + line(b"hi", 257), "line 258: the token b'hi' stands in line 257 already"),
        (MODEL + b" 257\n", "line 258: found"),
        (MODEL + b"\n", "line 258: found b''"),
        (MODEL + line(b"x" * 1025, 257), "line 258: token of 1025 bytes found, .* at most 1024"),
        (
            b"".join(BYTES).replace(BYTES[65], line(b"hi", 65)),
            "1 of the 256 single bytes are no tokens, the first is byte 65",
        ),
        (b"\xff\xfe" * 1000, r"line 1: found b'.*\.\.\.'"),
        (b"\n" * (1 << 20) + b"\n", "1048577 lines found, needed are at most 1048576"),
    ],
)
def test_damaged_tiktoken_files_are_refused(tmp_path, data, message):
    file = tmp_path / "tokenizer.model"
    file.write_bytes(data)
    check_damaged(file, message)


def test_a_huge_tiktoken_file_is_not_read(tmp_path):
    file = tmp_path / "tokenizer.model"
    with file.open("wb") as stream:
        stream.truncate(1 << 40)
    check_damaged(file, "1099511627776 bytes found, needed are at most 67108864")


@given(at=st.integers(0, len(MODEL) - 1), byte=st.integers(0, 255))
def test_any_byte_of_a_tiktoken_file_may_be_wrong(tmp_path_factory, at, byte):
    file = tmp_path_factory.mktemp("any") / "tokenizer.model"
    file.write_bytes(MODEL[:at] + bytes([byte]) + MODEL[at + 1 :])
    try:
        tokenizer = sf.tokenizer.load(file)
    except CheckpointError:
        return
    assert tokenizer.decode(tokenizer.encode("hi €", bos=False)) == "hi €"
