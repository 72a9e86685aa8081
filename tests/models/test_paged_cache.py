"""Keys and values in pages: who owns which, what is shared, and what is copied."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simdformer.models import PagedKVCache


def new_cache(**how):
    sizes = {"num_layers": 2, "num_kv_heads": 1, "head_dim": 1, "page_size": 16} | how
    return PagedKVCache(**sizes)


def write(sequence, ids, **how):
    """What a model does: the value of a position is its id."""
    sequence.reserve(len(ids))
    size = sequence.cache.page_size
    for at, id in enumerate(ids, sequence.length):
        sequence.cache.data[:, :, sequence.pages[at // size], :, at % size] = id
    sequence.advance(ids, **how)


def read(sequence):
    pages = sequence.cache.data[1, 1, sequence.pages, 0, :, 0].reshape(-1)
    return pages[: sequence.length].astype(int).tolist()


def test_what_texts_begin_with_is_stored_once():
    cache = new_cache()
    first = cache.open(range(40))
    assert first.length == 0
    write(first, range(40))
    second = cache.open([*range(34), 99, 98])
    assert second.length == 32
    assert second.pages == first.pages[:2]
    write(second, [32, 33, 99, 98])
    assert read(second) == [*range(34), 99, 98]
    assert read(first) == list(range(40))
    # At least two ids are left to read, and a page counts with all that is before it.
    assert cache.open(range(33)).length == 16
    assert cache.open(range(16, 60)).length == 0


def test_pages_are_found_again_until_their_memory_is_needed():
    cache = new_cache(max_pages=4)
    text = cache.open()
    write(text, range(48))
    text.close()
    assert cache.free_pages == 4
    again = cache.open(range(48))
    assert again.length == 32
    again.close()
    other = cache.open()
    write(other, range(100, 164))
    assert cache.open(range(48)).length == 0
    with pytest.raises(MemoryError, match="PagedKVCache: all 4 pages of 16 positions are in use"):
        cache.open().reserve(1)
    assert read(other) == list(range(100, 164))


def test_what_is_not_to_be_shared_is_not_found():
    cache = new_cache()
    text = cache.open()
    write(text, range(20))
    write(text, range(20, 40), shared=False)
    assert cache.open(range(60)).length == 16


def test_a_fork_copies_what_it_writes_into():
    cache = new_cache()
    one = cache.open()
    write(one, range(20))
    other = one.fork()
    assert other.pages == one.pages
    write(other, [7, 8])
    write(one, [5])
    assert read(one) == [*range(20), 5]
    assert read(other) == [*range(20), 7, 8]
    assert one.pages[0] == other.pages[0]
    assert one.pages[1] != other.pages[1]
    with pytest.raises(ValueError, match="length is 23, needed is 0 to 22"):
        other.truncate(23)


@given(st.data())
def test_sequences_hold_what_was_written_into_them(data):
    """Whatever is opened, written, forked, cut and closed: each reads as if it were alone."""
    cache = new_cache(max_pages=data.draw(st.sampled_from([None, 6])))
    texts = []  # (sequence, its ids)
    for _ in range(data.draw(st.integers(1, 25))):
        action = data.draw(st.sampled_from(["open", "write", "fork", "truncate", "close"]))
        if action == "open" or not texts:
            ids = data.draw(st.sampled_from([[], [1] * 40, [1] * 16 + [2] * 30]))
            sequence = cache.open(ids)
            texts.append((sequence, ids[: sequence.length]))
            continue
        at = data.draw(st.integers(0, len(texts) - 1))
        sequence, ids = texts[at]
        if action == "write":
            new = [data.draw(st.integers(1, 2))] * data.draw(st.integers(1, 40))
            try:
                write(sequence, new, shared=data.draw(st.booleans()))
            except MemoryError:
                continue
            texts[at] = sequence, ids + new
        elif action == "fork":
            texts.append((sequence.fork(), ids))
        elif action == "truncate":
            length = data.draw(st.integers(0, len(ids)))
            sequence.truncate(length)
            texts[at] = sequence, ids[:length]
        else:
            sequence.close()
            texts.pop(at)
        for other, held in texts:
            assert (read(other), other.ids) == (held, held)
    for sequence, _ in texts:
        sequence.close()
    assert cache.free_pages == cache.max_pages


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"page_size": 20}, "page_size is 20, needed is a multiple of 16"),
        ({"dtype": "int8"}, "dtype is 'int8', needed is one of float64"),
        ({"max_pages": 0}, "max_pages is 0"),
        ({"head_dim": 1.5}, "head_dim is 1.5"),
    ],
)
def test_what_is_no_cache(how, message):
    with pytest.raises((ValueError, TypeError), match=f"PagedKVCache: {message}"):
        new_cache(**how)


def test_sizes():
    cache = new_cache(dtype="float16")
    assert cache.page_bytes == 2 * 2 * 16 * 2
    cache.open().reserve(17)
    assert cache.nbytes == cache.data.nbytes
    assert np.shares_memory(cache.key_pages(1), cache.data)
