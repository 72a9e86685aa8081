"""Keys and values in pages: who owns which, what is shared, and what is copied; and the cache of a
model, which is texts in such pages."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import simdformer as sf
from simdformer.models import KVCache, PagedKVCache


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
    with pytest.raises(ValueError, match="length is 23, needs 0 to 22"):
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
        ({"page_size": 0}, "page_size is 0, needs a whole number > 0"),
        ({"dtype": "int8"}, "dtype is 'int8', needs one of float64"),
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


# ---- what is written and read by hand ------------------------------------------------------------

SIZES = {"num_layers": 2, "num_kv_heads": 3, "head_dim": 4}


def keys_and_values(rng, new, batch=2, dtype=np.float32):
    return rng.normal(size=(2, batch, 3, new, 4)).astype(dtype)


@pytest.mark.parametrize("page_size", [1, 3, 7, 16, 32])
def test_what_is_written_is_gathered(page_size, rng):
    """In any pieces, over the ends of pages, in pages that do not lie side by side."""
    cache = KVCache(**SIZES, max_seq_len=60, batch=2, page_size=page_size)
    written = [np.zeros((2, 2, 3, 0, 4), np.float32)] * 2
    for new in (1, 5, 30, 2, 9):
        for layer in range(2):
            piece = keys_and_values(rng, new)
            written[layer] = np.concatenate([written[layer], piece], axis=3)
            got = cache.write(layer, *piece)
            np.testing.assert_array_equal(got, written[layer])
        cache.advance(new)
        other = cache.pages.open()  # which takes the page behind
        other.reserve(1)
    assert cache.length == 47
    for layer in range(2):
        np.testing.assert_array_equal(cache.gather(layer), written[layer])
        alone = cache.texts[1].gather(layer)
        np.testing.assert_array_equal(alone, written[layer][:, 1])
    cache.truncate([4, 47])
    np.testing.assert_array_equal(cache.sequence(0).gather(1), written[1][:, :1, :, :4])


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ((2, 3, 1, 4), (2, 3, 2, 4), r"value has shape \(2, 3, 2, 4\), needs that of key"),
        ((1, 3, 1, 4), (1, 3, 1, 4), r"key has shape \(1, 3, 1, 4\), needs \(2, 3, T, 4\)"),
        ((2, 3, 1, 1), (2, 3, 1, 1), r"key has shape \(2, 3, 1, 1\), needs \(2, 3, T, 4\)"),
        ((3, 1, 4), (3, 1, 4), r"key has shape \(3, 1, 4\), needs \(2, 3, T, 4\)"),
        ((2, 3, 6, 4), (2, 3, 6, 4), "6 more positions do not fit, 3 of 8 are filled"),
    ],
)
def test_what_does_not_fit_into_a_cache_is_refused(key, value, message):
    """And not broadcast, and none of its positions dropped."""
    cache = KVCache(**SIZES, max_seq_len=8, batch=2)
    for layer in range(2):
        cache.write(layer, np.ones((2, 3, 3, 4), np.float32), np.ones((2, 3, 3, 4), np.float32))
    cache.advance(3)
    with pytest.raises(ValueError, match=message):
        cache.write(0, np.zeros(key, np.float32), np.zeros(value, np.float32))
    for wrong in (6, -1):
        with pytest.raises(ValueError, match="KVCache"):
            cache.advance(wrong)
    assert cache.length == 3
    with pytest.raises(IndexError, match=r"KVCache.write: layer is 2, needs 0 to 1"):
        cache.write(2, np.zeros((2, 3, 1, 4)), np.zeros((2, 3, 1, 4)))
    np.testing.assert_array_equal(cache.gather(0), np.ones((2, 2, 3, 3, 4)))


@pytest.mark.parametrize(
    ("dtype", "taken", "refused"),
    [
        ("float32", ["float32", "float16", "bfloat16"], ["float64", "int64", "complex64", "bool"]),
        ("bfloat16", ["float32", "bfloat16"], ["float64", "float16", "int8"]),
        ("float64", ["float64", "float32", "float16"], ["int64"]),
    ],
)
def test_keys_and_values_have_a_dtype_that_the_cache_takes(dtype, taken, refused):
    cache = KVCache(**SIZES, max_seq_len=8, dtype=dtype)
    pages = PagedKVCache(**SIZES, dtype=dtype).open()
    pages.reserve(8)
    for kind in (*taken, *refused):
        x = np.ones((1, 3, 2, 4)).astype(kind)
        for write, new in ((cache.write, x), (pages.write, x[0])):
            if kind in taken:
                write(1, new, new)
            else:
                with pytest.raises(TypeError, match=f"write: key is {kind}, needs one of"):
                    write(1, new, new)


def test_a_text_is_written_into_pages_that_it_has():
    text = new_cache().open()
    text.reserve(3)
    x = np.zeros((1, 17, 1), np.float32)
    with pytest.raises(ValueError, match=r"key has 17 positions, .* the 16 that are reserved"):
        text.write(0, x, x)
    with pytest.raises(ValueError, match=r"found 17 positions, .* the 16 that are reserved"):
        text.advance(range(17))
    with pytest.raises(ValueError, match=r"key has shape \(2, 3, 1\), needs \(1, T, 1\)"):
        text.write(0, np.zeros((2, 3, 1), np.float32), np.zeros((2, 3, 1), np.float32))
    text.advance(16)
    assert text.length == 16
    assert text.cache.open([-1] * 20).length == 0  # what only a number counted is found by nobody


# ---- one cache for everything --------------------------------------------------------------------


def test_a_model_and_generate_share_a_cache(demo):
    """What one has read the other does not read again; the text of the model stays as it is."""
    ids = demo.tokenizer.encode("Once upon a time there was a big dog. " * 6)
    cache = demo.new_cache()
    read = demo(ids, cache)
    report = sf.text.Report()
    more = demo.generate(ids, max_new_tokens=9, cache=cache, report=report)
    assert more == demo.generate(ids, max_new_tokens=9)
    assert report.cached_ids == (len(ids) - 2) // 32 * 32
    assert cache.length == len(ids)
    assert demo([more[0]], cache).argmax() == more[1]
    np.testing.assert_array_equal(read[-1].argmax(), more[0])
    said = [{"role": "user", "content": "Once upon a time"}]
    assert demo.chat(said, 9, cache=cache) == demo.chat(said, 9)
    with demo.batch(cache=cache) as batch:
        batch.add(ids, max_new_tokens=2, draft=demo)
        assert [update.new for update in batch.step()] == [more[:1]]


def test_an_edited_text_shares_nothing(demo):
    ids = demo.tokenizer.encode("Once upon a time there was a big dog. " * 6)
    cache, edit = demo.new_cache(), {"layers.*.attn.v": lambda v: v * 0}
    demo(ids, cache, edit=edit)
    edited = demo.generate(ids, max_new_tokens=4, cache=cache, edit=edit)
    plain = sf.text.Report()
    demo.generate(ids, max_new_tokens=4, cache=cache, report=plain)
    assert plain.cached_ids == 0
    again = sf.text.Report()
    found = demo.generate(ids, max_new_tokens=4, cache=cache, edit=edit, report=again)
    assert (found, again.cached_ids) == (edited, 0)


@pytest.mark.parametrize("page_size", [1, 7, 32])
def test_bits_do_not_depend_on_pages(demo, page_size):
    ids = demo.tokenizer.encode("Mia has a red kite and Tom has a blue boat.")
    plain, other = demo.new_cache(), demo.new_cache(page_size=page_size)
    for piece in (ids[:5], ids[5:6], ids[6:]):
        np.testing.assert_array_equal(demo(piece, plain), demo(piece, other))
    kept = demo.generate(ids, max_new_tokens=9, cache=demo.new_cache(page_size=page_size))
    assert kept == demo.generate(ids, max_new_tokens=9)


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 20])
def test_a_cache_changes_no_bits_of_what_is_read_at_once(demo, count, isa):
    ids = list(range(300, 300 + count))
    np.testing.assert_array_equal(demo(ids, demo.new_cache()), demo(ids))
    both = np.array([ids, ids[::-1]])
    np.testing.assert_array_equal(demo(both, demo.new_cache(batch=2)), demo(both))


def test_a_cache_of_little_memory_is_for_all_texts_in_it(demo):
    page = demo.new_cache().pages.page_bytes
    cache = demo.new_cache(memory=3 * page)
    demo(range(1, 60), cache)
    with pytest.raises(
        MemoryError, match="the next text takes 2 pages, and of the cache's 3 other"
    ):
        demo.generate([300] * 40, max_new_tokens=9, cache=cache)
    assert demo.generate([300], max_new_tokens=9, cache=cache)
    with pytest.raises(MemoryError, match="all 3 pages of 32 positions are in use"):
        demo([5] * 60, cache)
    assert cache.length == 59
    with pytest.raises(ValueError, match=f"new_cache: memory is 5 bytes, needs at least {page}"):
        demo.new_cache(memory=5)


def test_the_cache_of_before_is_still_taken(demo):
    with pytest.warns(DeprecationWarning, match="new_paged_cache is new_cache"):
        cache = demo.new_paged_cache()
    prompt = [*range(1, 40)]
    assert demo.generate(prompt, 5, cache=cache) == demo.generate(prompt, 5)
    assert cache.open(prompt).length == 32
    with pytest.raises(TypeError, match=r"model: cache is .*, needs a KVCache"):
        demo(prompt, cache)


def test_whatever_has_the_protocol_of_a_model_is_continued(demo):
    """A model that hands everything on, and counts."""

    class Counting:
        def __init__(self, model):
            self.model, self.read = model, 0
            self.config, self.ranks = model.config, model.ranks
            self.new_cache, self.new_pages = model.new_cache, model.new_pages
            self.check_pages = model.check_pages

        def __call__(self, ids, *rest, **options):
            self.read += len(ids)
            return self.model(ids, *rest, **options)

        def forward_batch(self, run):
            self.read += run.ids.size
            return self.model.forward_batch(run)

    counting, drafting = Counting(demo.transformer), Counting(demo.transformer)
    model = sf.text.LanguageModel(counting)
    ids = demo.tokenizer.encode("Once upon a time")
    expected = demo.generate(ids, max_new_tokens=12)
    assert model.generate(ids, max_new_tokens=12, draft=drafting) == expected
    assert counting.read >= len(ids) + 11
    assert drafting.read > len(ids)
