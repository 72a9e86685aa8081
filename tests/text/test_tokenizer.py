"""llama2.c's tokenizer: encoding, decoding, streaming, and files that are none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simdformer as sf
from checkpoints import tiny_tokenizer, tokenizer_bytes
from simdformer.checkpoints import CheckpointError
from simdformer.text.llama2c_tokenizer import Llama2cTokenizer
from simdformer.text.streaming import StopStrings
from test_tokenizers import NASTY, check_refusals

TINY = Llama2cTokenizer(*tiny_tokenizer(300))


@pytest.fixture(scope="module")
def stories(shared):
    return sf.tokenizer.load(shared / "data" / "stories260K" / "tok512.bin")


def merge_by_the_book(tokenizer, text):
    """llama2.c's loop: look at all neighbours, join the best, start again."""
    pieces = [piece.decode("latin-1") for piece in tokenizer._pieces.values()]
    scores = tokenizer._merges._scores
    known = {piece: id for id, piece in reversed(list(enumerate(pieces))) if id >= 259}
    ids = []
    for character in " " + text:
        utf8 = character.encode()
        spelled = utf8.decode("latin-1")
        ids += [known[spelled]] if spelled in known else [3 + byte for byte in utf8]
    while True:
        best = None
        for i in range(len(ids) - 1):
            joined = (
                known.get(pieces[ids[i]] + pieces[ids[i + 1]])
                if min(ids[i : i + 2]) >= 259
                else None
            )
            if joined is not None and (best is None or scores[joined] > best[0]):
                best = scores[joined], i, joined
        if best is None:
            return ids
        _, i, joined = best
        ids[i : i + 2] = [joined]


# ---- text to ids ---------------------------------------------------------------------------------


def test_known_ids(stories):
    assert stories.encode("Once upon a time") == [1, 403, 407, 261, 378]
    assert stories.encode("Once upon a time", bos=False) == [403, 407, 261, 378]
    assert stories.encode("") == [1]
    assert stories.encode("", bos=False) == []
    assert stories.encode("日", bos=False)[-3:] == [3 + 0xE6, 3 + 0x97, 3 + 0xA5]
    assert (stories.vocab_size, stories.bos_id, stories.eos_ids) == (512, 1, (1, 2))


@given(text=st.text(st.sampled_from("abcdefgh é€ß\n<s>"), max_size=60))
def test_encoding_joins_the_best_pair_first(text):
    expected = merge_by_the_book(TINY, text) if text else []
    assert TINY.encode(text, bos=False) == expected


@given(text=st.text(st.sampled_from("onceupatimlysdrhgw .,OTL'\"\n"), max_size=60))
def test_the_real_tokenizer_joins_the_best_pair_first(shared, text):
    tokenizer = sf.tokenizer.load(shared / "data" / "stories260K" / "tok512.bin")
    assert tokenizer.encode(text, bos=False) == (merge_by_the_book(tokenizer, text) if text else [])


def test_a_long_text_takes_no_quadratic_time(stories):
    ids = stories.encode("Once upon a time, there was a little girl. " * 5000)
    assert (
        stories.decode(ids, skip_special=True)
        == "Once upon a time, there was a little girl. " * 5000
    )


def test_special_tokens_in_a_text_count_only_when_asked_for(stories):
    plain = stories.encode("a<s>b</s>")
    assert plain.count(1) == 1
    assert 2 not in plain
    special = stories.encode("a<s>b</s>", special=True)
    assert special.count(1) == 2
    assert special[-1] == 2
    assert stories.decode(special) == "<s>a<s>b</s>"


# ---- ids to text ---------------------------------------------------------------------------------


@pytest.mark.parametrize("text", NASTY)
def test_nasty_texts_come_back(stories, text):
    for tokenizer in (stories, TINY):
        assert tokenizer.decode(tokenizer.encode(text), skip_special=True) == text
        assert tokenizer.decode(tokenizer.encode(text)) == "<s>" + text
        assert tokenizer.decode(tokenizer.encode(text, bos=False)) == text
        with_special = tokenizer.encode(text + "<s>" + text + "</s>" + text, special=True)
        assert tokenizer.decode(with_special) == f"<s>{text}<s>{text}</s>{text}"


def test_the_space_in_front_is_taken_away_where_a_text_begins(stories):
    ids = stories.encode("time", bos=False)
    assert stories.decode([1, *ids], skip_special=True) == "time"
    assert stories.decode(ids) == "time"
    assert stories.decode([2, *ids], skip_special=True) == " time"
    assert (
        stories.decode([1, 3 + ord(" "), *ids], skip_special=True) == "  time"
    )  # a byte was not put there
    pieces, scores = tiny_tokenizer(300)
    pieces[pieces.index(b" ")] = b"?"  # now the space in front is a byte
    without = Llama2cTokenizer(pieces, scores)
    assert without.decode(without.encode("time", bos=False)) == "time"


def test_ids_without_text():
    assert TINY.decode([300, 10**6]) == ""  # a model's vocabulary may be padded
    assert TINY.decode([3 + 0xE2, 3 + 0x82]) == "\ufffd"  # no character
    assert TINY.decode([0, 1, 2]) == "<unk><s></s>"
    assert TINY.decode([0, 1, 2], skip_special=True) == ""
    check_refusals(TINY)


@given(
    pieces=st.lists(st.text("abc", max_size=4), max_size=12),
    stops=st.lists(st.text("abc", min_size=1, max_size=3), max_size=3),
)
def test_nothing_of_a_stop_string_gets_through(pieces, stops):
    text = "".join(pieces)
    filtered, shown = StopStrings(stops), ""
    for piece in pieces:
        shown += filtered.put(piece)
    shown += filtered.flush()
    assert (
        shown == text[: min((text.find(stop) for stop in stops if stop in text), default=len(text))]
    )


# ---- files ---------------------------------------------------------------------------------------


def test_a_written_file_is_read(tmp_path):
    path = tmp_path / "tok300.bin"
    path.write_bytes(tokenizer_bytes(*tiny_tokenizer(300)))
    for at in (path, str(path), tmp_path):
        tokenizer = sf.tokenizer.load(at)
        assert isinstance(tokenizer, sf.tokenizer.Tokenizer)
        assert tokenizer.vocab_size == 300
        assert tokenizer.encode("abc de") == TINY.encode("abc de")


GOOD = tokenizer_bytes(*tiny_tokenizer(300))


def test_paths_that_are_no_tokenizer(tmp_path):
    with pytest.raises(FileNotFoundError):
        sf.tokenizer.load(tmp_path / "nowhere.bin")
    with pytest.raises(CheckpointError, match=r"found the tokenizers none, needs one \("):
        sf.tokenizer.load(tmp_path)
    for name in ("tok1.bin", "tok2.bin"):
        (tmp_path / name).write_bytes(tokenizer_bytes(*tiny_tokenizer(300)))
    with pytest.raises(
        CheckpointError,
        match=r"found the tokenizers tok1.bin, tok2.bin, needs one .*; give the path",
    ):
        sf.tokenizer.load(tmp_path)


def test_pieces_and_scores_belong_together():
    pieces, scores = tiny_tokenizer(300)
    with pytest.raises(ValueError, match="300 pieces, but 299 scores"):
        Llama2cTokenizer(pieces, scores[1:])
