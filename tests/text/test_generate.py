"""Generation: the published text of a real model, the sampling chain against PyTorch's, stops and
streams."""

import dataclasses
import inspect
import itertools
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import simdformer as sf
from checkpoints import llama2c_bytes, random_weights, tiny_config, tiny_tokenizer, tokenizer_bytes
from conftest import same_bits
from simdformer.checkpoints import CheckpointError
from simdformer.text import Report, Sampler, sampling

# ---- the real model ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stories(shared):
    return shared / "data" / "stories260K"


@pytest.fixture(scope="module")
def story(stories):
    """The text that the model's card publishes for greedy sampling, 256 tokens."""
    card = (stories / "stories260K.md").read_text()
    return card.split("-t 0.0\n")[1].split("\n```")[0]


@pytest.fixture(scope="module")
def model(stories):
    return sf.from_pretrained(stories / "stories260K.bin")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("file", ["stories260K.bin", "stories260K_v1.bin"])
def test_the_greedy_text_is_the_published_one(isa, stories, story, file):
    model = sf.from_pretrained(stories / file)
    assert model.generate("", max_new_tokens=256) == story
    start = "Once upon a time, there was"
    assert start + model.generate(start, max_new_tokens=256)[: len(story) - len(start)] == story


@pytest.mark.sampled(2)
def test_the_same_text_without_the_cache(isa, model, story):
    ids = [1]
    while len(ids) < 257:
        ids.append(int(model(ids, logits_to_keep=1)[0].argmax()))
    assert model.tokenizer.decode(ids, skip_special=True) == story
    cache = model.new_cache(257)
    stepwise = np.concatenate([model([id], cache) for id in ids])
    # Logits up to 20, sums in another order: a few roundings of 1e-6 each.
    np.testing.assert_allclose(stepwise, model(ids), rtol=0, atol=2e-4)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_ids_in_ids_out(stories, story, dtype):
    model = sf.from_pretrained(stories / "stories260K.bin", dtype=dtype)
    ids = model.generate([1], max_new_tokens=40)
    assert story.startswith(model.tokenizer.decode([1, *ids], skip_special=True))
    assert model.generate(np.array([1], np.int32), max_new_tokens=40) == ids
    assert all(type(id) is int for id in ids)


def test_long_prompts_are_read_in_chunks(model, story, monkeypatch):
    expected = model.generate(story, max_new_tokens=20)
    monkeypatch.setattr("simdformer.text.continuous_batch.PREFILL_CHUNK", 7)
    assert model.generate(story, max_new_tokens=20) == expected


def test_sampling_repeats_with_a_seed(model):
    def write(seed, **how):
        return model.generate("Once", max_new_tokens=30, temperature=1.0, seed=seed, **how)

    assert write(7) == write(7)
    assert len({write(seed) for seed in range(5)}) == 5
    assert (
        write(7, top_k=1)
        == write(8, min_p=1.0)
        == write(9, top_p=1e-6)
        == model.generate("Once", max_new_tokens=30)
    )
    assert "Lily. Lily" not in model.generate("Lily", max_new_tokens=60, repetition_penalty=1.3)


def test_stop_strings_are_cut_off_and_held_back(model, story):
    for stop, expected in [
        ("park", story.split("park")[0]),
        (["a big", "One day", "nowhere"], story.split("One day")[0]),
        ("\n", story.split("\n")[0]),
    ]:
        seen = []
        assert model.generate("", max_new_tokens=256, stop=stop, streamer=seen.append) == expected
        assert "".join(seen) == expected
        ids = model.generate([1], max_new_tokens=256, stop=stop)
        assert expected.startswith(model.tokenizer.decode([1, *ids], skip_special=True))
    comma = model.tokenizer.encode(",", bos=False)[-1]
    assert model.generate("", max_new_tokens=256, stop=comma) == story.split(",")[0]
    assert model.generate("", max_new_tokens=256, stop=["Lily", comma]) == story.split(",")[0]


def test_a_streamer_sees_the_text_as_it_comes(model):
    class Streamer:
        def __init__(self):
            self.pieces, self.ended = [], 0

        def put(self, piece):
            assert not self.ended
            self.pieces.append(piece)

        def end(self):
            self.ended += 1

    streamer = Streamer()
    text = model.generate("Once upon a time", max_new_tokens=20, streamer=streamer)
    assert "".join(streamer.pieces) == text
    assert len(streamer.pieces) > 10
    assert streamer.ended == 1
    streamer = Streamer()
    assert model.generate([1, 403], max_new_tokens=20, streamer=streamer) == streamer.pieces
    with pytest.raises(
        ValueError, match="generate: a streamer follows one prompt, found is a list of them"
    ):
        model.generate(["a", "b"], max_new_tokens=2, streamer=streamer)


def test_an_interrupt_leaves_the_model_usable(model):
    pieces = []

    def interrupt(piece):
        pieces.append(piece)
        if len(pieces) == 5:
            raise KeyboardInterrupt

    expected = model.generate("Tom", max_new_tokens=20)
    with pytest.raises(KeyboardInterrupt):
        model.generate("Tom", max_new_tokens=20, streamer=interrupt)
    assert model.generate("Tom", max_new_tokens=20) == expected
    assert expected.startswith("".join(pieces))


def test_a_report_counts(model):
    report = Report()
    model.generate("Once upon a time", max_new_tokens=12, report=report)
    assert (report.prompt_ids, report.new_ids, report.decode_ids) == (5, 12, 11)
    assert report.prefill_seconds > 0
    assert report.decode_seconds > 0
    assert report.logits.shape == (1, 512)


def test_the_context_ends_at_max_seq_len(stories, model):
    message = "generate: prompt of 5 ids and 508 new ones are more than max_seq_len = 512; shorten"
    with pytest.raises(ValueError, match=message):
        model.generate("Once upon a time", max_new_tokens=508)
    short = sf.from_pretrained(stories / "stories260K.bin", max_seq_len=30)
    assert short.config.max_seq_len == 30
    report = Report()
    text = short.generate("Once upon a time", report=report)
    assert (report.new_ids, report.decode_ids) == (25, 24)
    assert text == model.generate("Once upon a time", max_new_tokens=25)
    with pytest.raises(
        ValueError, match="prompt of 30 ids and 1 new ones are more than max_seq_len = 30"
    ):
        short.generate([1] * 30)
    together = Report()
    long = short.tokenizer.encode("Once upon a time, there was a little girl named Lily.")
    prompts = [long, long[:3]]
    answers = short.generate(prompts, report=together)
    assert answers == [short.generate(prompt) for prompt in prompts]  # each to its own end
    assert together.new_ids == sum(30 - len(prompt) for prompt in prompts)
    with pytest.raises(ValueError, match="from_pretrained: max_seq_len is 0"):
        sf.from_pretrained(stories / "stories260K.bin", max_seq_len=0)


# ---- a tiny model of random weights --------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A directory with a model that has never seen a text, and its tokenizer."""
    folder = tmp_path_factory.mktemp("tiny")
    config = tiny_config(tie_embeddings=False)
    weights = random_weights(np.random.default_rng(8), config)
    (folder / "model.bin").write_bytes(llama2c_bytes(config, weights, 1))
    (folder / "tokenizer.bin").write_bytes(tokenizer_bytes(*tiny_tokenizer(300)))
    return folder


def test_text_ends_at_bos_and_eos(tiny, monkeypatch):
    """A model that says: token 5, token 6, then bos or eos, then 7 for ever."""
    model = sf.from_pretrained(tiny)
    for end in (1, 2):
        plan = itertools.chain([5, 6, end], itertools.repeat(7))
        monkeypatch.setattr(model.transformer, "unembed", says(plan))
        assert model.generate([9], max_new_tokens=10) == [5, 6]
        plan = itertools.chain([5, 6, end], itertools.repeat(7))
        monkeypatch.setattr(model.transformer, "unembed", says(plan))
        assert model.generate("b", max_new_tokens=10) == "\x02\x03"


def says(plan):
    """The last step of a model that says what is planned, whatever it has read."""
    return lambda x, *_: np.broadcast_to(np.eye(300)[next(plan)], (*x.shape[:-1], 300))


@given(
    words=st.text("abß€é d", min_size=1, max_size=12),
    stops=st.lists(st.text("abß€ ", min_size=1, max_size=3), max_size=2),
)
def test_streaming_never_shows_part_of_a_character_or_of_a_stop(tiny, words, stops):
    """Whatever a model says, byte by byte: here it is made to say a given text in byte tokens."""
    model = sf.from_pretrained(tiny)
    plan = itertools.chain([3 + byte for byte in words.encode()], itertools.repeat(2))
    model.transformer.unembed = says(plan)
    expected = words[
        : min((words.find(stop) for stop in stops if stop in words), default=len(words))
    ]
    seen = []
    assert model.generate("a", max_new_tokens=50, stop=stops, streamer=seen.append) == expected
    assert "".join(seen) == expected
    assert all(expected.startswith("".join(seen[:n])) for n in range(len(seen)))

    plan = itertools.chain([3 + byte for byte in words.encode()], itertools.repeat(2))
    model.transformer.unembed = says(plan)
    shown = []
    ids = model.generate([9], max_new_tokens=50, stop=stops, streamer=shown.append)
    assert ids == shown == [3 + byte for byte in expected.encode()]


def test_a_prompt_that_is_none(tiny):
    model = sf.from_pretrained(tiny)
    for empty in ([], np.array([], np.int64), [[]]):
        with pytest.raises(ValueError, match="generate: prompt has no ids, needs at least one"):
            model.generate(empty, max_new_tokens=2)
    for kind in (3.5, [1.5], np.ones((2, 2, 2), int), None):
        with pytest.raises(TypeError, match=r"generate: prompt is .*, needs text or ids"):
            model.generate(kind, max_new_tokens=2)
    with pytest.raises(IndexError):
        model.generate([300], max_new_tokens=2)
    for count in (0, -3, 2.5, "3"):
        with pytest.raises(
            ValueError, match=f"generate: max_new_tokens is {count!r}, needs a whole number > 0"
        ):
            model.generate("a", max_new_tokens=count)
    with pytest.raises(TypeError, match="generate: streamer is 3, needs a function of a piece"):
        model.generate("a", max_new_tokens=2, streamer=3)
    with pytest.raises(TypeError, match="KVCache: dtype is 'half a float', needs one of"):
        model.generate("a", max_new_tokens=2, cache_dtype="half a float")
    with pytest.raises(
        ValueError, match=r"generate: max_new_tokens is \d+, needs .* > 0 and < 2\*\*63$"
    ):
        model.generate("a", max_new_tokens=2**70)
    for stop in ({}, {"a": 1}, 2.5):
        with pytest.raises(TypeError, match=r"generate: stop is .*, needs strings or ids$"):
            model.generate("a", max_new_tokens=2, stop=stop)
    for stop in ("", ["a", ""], [2.5], True, -1, [2**70], b"a"):
        with pytest.raises(
            ValueError, match=r"generate: stop is .*, needs strings that are not empty, or ids"
        ):
            model.generate("a", max_new_tokens=2, stop=stop)
    with pytest.raises(ValueError, match="is the lone surrogate"):
        model.generate("\ud800", max_new_tokens=2)


def test_the_tokenizer_is_found_or_given(tiny, tmp_path):
    assert sf.from_pretrained(tiny).tokenizer.vocab_size == 300
    (tmp_path / "model.bin").write_bytes((tiny / "model.bin").read_bytes())
    (tmp_path / "tok301.bin").write_bytes(tokenizer_bytes(*tiny_tokenizer(301)))
    alone = sf.from_pretrained(tmp_path)
    assert alone.tokenizer is None  # the one that lies there is another model's
    assert len(alone.generate([1], max_new_tokens=3)) == 3
    message = (
        r"generate: a prompt of text needs a tokenizer, .* from_pretrained\(path, tokenizer=FILE"
    )
    with pytest.raises(ValueError, match=message):
        alone.generate("a", max_new_tokens=3)
    with pytest.raises(ValueError, match="generate: a stop string needs a tokenizer"):
        alone.generate([1], max_new_tokens=3, stop="a")

    given = sf.from_pretrained(tmp_path, tokenizer=tiny / "tokenizer.bin")
    assert given.generate("a", max_new_tokens=3) == sf.from_pretrained(tiny).generate(
        "a", max_new_tokens=3
    )
    same = sf.from_pretrained(tmp_path, tokenizer=sf.tokenizer.load(tiny))
    assert same.generate("a", max_new_tokens=3) == given.generate("a", max_new_tokens=3)
    with pytest.raises(
        CheckpointError,
        match=r"tok301.bin: found the token .* with the id 300, needs at most 299: .*model.bin",
    ):
        sf.from_pretrained(tiny, tokenizer=tmp_path / "tok301.bin")
    with pytest.raises(FileNotFoundError):
        sf.from_pretrained(tiny, tokenizer=tmp_path / "nowhere.bin")
    (tmp_path / "tok300.bin").write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match=r"tok300.bin"):
        sf.from_pretrained(tmp_path)


def test_a_language_model_is_a_transformer_with_a_tokenizer(tiny):
    model = sf.from_pretrained(tiny)
    assert repr(model) == (
        "LanguageModel(num_layers=3, hidden_size=32, num_heads=4, num_kv_heads=2, vocab_size=300, "
        "max_seq_len=64)"
    )
    logits, trace = model.run_with_cache([1, 2, 3], names="logits")
    assert same_bits(logits, model([1, 2, 3]))
    assert same_bits(trace["logits"], logits)
    cache = model.new_cache(8)
    model([1, 2, 3], cache)
    assert cache.length == 3


# ---- sampling ------------------------------------------------------------------------------------

LOGITS = np.random.default_rng(4).normal(scale=2, size=50)


def warped(logits, *processors, so_far=()):
    """Probabilities after transformers' processors, in their order."""
    scores = torch.from_numpy(np.array(logits))[None]
    for processor in processors:
        scores = processor(torch.tensor([list(so_far)]), scores)
    return torch.softmax(scores, -1)[0].numpy()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
@pytest.mark.parametrize("penalty", [1.0, 1.4, 0.8])
def test_the_chain_is_that_of_transformers(temperature, penalty):
    import transformers.generation as hf

    so_far = [3, 3, 17, 44]
    first = [hf.RepetitionPenaltyLogitsProcessor(penalty), hf.TemperatureLogitsWarper(temperature)]
    cuts = itertools.product(
        [None, 1, 7, 50, 99], [None, 0.05, 0.6, 0.95, 1.0], [None, 0.0, 0.1, 0.9]
    )
    for top_k, top_p, min_p in cuts:
        processors = [hf.TopKLogitsWarper(top_k)] if top_k else []
        processors += [hf.TopPLogitsWarper(top_p)] if top_p else []
        processors += [hf.MinPLogitsWarper(min_p)] if min_p is not None else []
        how = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
        how["repetition_penalty"] = penalty
        sampler = Sampler(**how, seed=0)
        expected = warped(LOGITS, *first, *processors, so_far=so_far)
        found = sampler.probabilities(LOGITS, so_far)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12, err_msg=str(how))
        assert all(expected[sampler(LOGITS, so_far)] > 0 for _ in range(50)), how


@pytest.mark.parametrize("spread", [0.0, 0.1, 1.0, 3.0, 30.0])
@pytest.mark.parametrize("top_p", [1e-9, 0.5, 0.9, 0.999, 1 - 1e-12])
def test_top_p_sorts_as_many_as_it_needs(spread, top_p, rng):
    """As few as one, or nearly all of them."""
    logits = rng.normal(size=3000) * spread
    alone = Sampler(temperature=1.0).probabilities(logits)
    found = Sampler(temperature=1.0, top_p=top_p).probabilities(logits)
    order = np.argsort(-alone, kind="stable")
    count = np.searchsorted(np.cumsum(alone[order]), top_p) + 1
    assert set(np.flatnonzero(found)) == set(order[:count])


def test_the_options_stand_once():
    """The dataclass and the type are those of the table, and every signature shows them."""
    names = [option.name for option in sampling.OPTIONS]
    fields = {field.name: field.default for field in dataclasses.fields(Sampler) if field.init}
    assert fields == {option.name: option.default for option in sampling.OPTIONS}
    assert list(sampling.SamplingOptions.__annotations__) == names
    for function in (sf.text.LanguageModel.generate, sf.text.Batch.add):
        shown = inspect.signature(function).parameters
        assert {name: shown[name].default for name in names} == fields
    for option in sampling.OPTIONS:
        assert f"    {option.name} : {option.needed}" in Sampler.__doc__


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("max_tokens", "; max_new_tokens?"),
        ("temprature", "; temperature?"),
        ("assistant_model", "; draft?"),
        ("xyz", ", needs some of max_new_tokens, "),
    ],
)
def test_an_option_that_is_none_tells_which_is_meant(model, name, meant):
    said = [{"role": "user", "content": "hello"}]
    with pytest.raises(TypeError, match=re.escape(f"generate: there is no option {name}{meant}")):
        model.generate("a", **{name: 3})
    with pytest.raises(TypeError, match=re.escape(f"Batch.add: there is no option {name}")):
        model.batch().add("a", **{name: 3})
    with pytest.raises(TypeError, match=re.escape(f"there is no option {name}{meant}")):
        sf.from_pretrained("demo").chat(said, **{name: 3})


@pytest.mark.parametrize("size", [3, 1000, 150_000])
@pytest.mark.parametrize("top_p", [0.2, 0.9, 0.999])
def test_top_p_takes_the_first_of_equals(size, top_p):
    """Many of these logits are equal, so that the last place is one that several could have."""
    logits = np.random.default_rng(size).integers(-4, 5, size).astype(np.float32)
    found = Sampler(temperature=0.7, top_p=top_p).probabilities(logits)
    alone = np.exp(logits.astype(np.float64) / 0.7)
    alone /= alone.sum()
    order = np.argsort(-alone, kind="stable")
    kept = order[np.cumsum(alone[order]) - alone[order] < top_p - 1e-12]
    expected = np.zeros(size)
    expected[kept] = alone[kept] / alone[kept].sum()
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_draws_follow_the_distribution():
    sampler = Sampler(temperature=1.0, seed=1)
    probabilities = sampler.probabilities(LOGITS[:5])
    counts = np.bincount([sampler(LOGITS[:5]) for _ in range(20_000)], minlength=5)
    # Five standard deviations of a binomial: one seed, so this passes or fails for good.
    assert np.all(
        np.abs(counts - 20_000 * probabilities)
        < 5 * np.sqrt(20_000 * probabilities * (1 - probabilities))
    )


@pytest.mark.parametrize("cut", [{}, {"top_k": 2}, {"top_p": 0.9}, {"min_p": 0.1}])
def test_the_lowest_temperature_is_greedy_too(cut):
    """1 / temperature is more than the largest float."""
    sampler = Sampler(temperature=5e-324, seed=0, **cut)
    np.testing.assert_array_equal(sampler.probabilities([-1.0, 4.0, 3.9]), [0, 1, 0])
    assert sampler([-1.0, 4.0, 3.9]) == 1


def test_greedy_takes_the_highest_and_the_first_of_equals():
    assert Sampler()([1.0, 3.0, 3.0]) == 1
    assert Sampler(repetition_penalty=4.0)([1.0, 3.0, -1.0], [1]) == 0
    assert Sampler(repetition_penalty=4.0)([-5.0, -2.0], [1]) == 0
    np.testing.assert_array_equal(Sampler().probabilities(np.array([1.0, 3.0, 3.0])), [0, 1, 0])


@pytest.mark.parametrize(
    ("name", "value", "needed"),
    [
        ("temperature", -0.1, ">= 0"),
        ("temperature", float("nan"), ">= 0"),
        ("temperature", "hot", ">= 0"),
        ("temperature", True, ">= 0"),
        ("top_k", 0, "None or in [1, 2**63)"),
        ("top_k", 2.5, "None or in [1, 2**63)"),
        ("top_k", True, "None or in [1, 2**63)"),
        ("top_k", 2**70, "None or in [1, 2**63)"),
        ("top_p", 0.0, r"None or in (0, 1]"),
        ("top_p", 1.1, r"None or in (0, 1]"),
        ("min_p", -0.1, "None or in [0, 1]"),
        ("min_p", 1.5, "None or in [0, 1]"),
        ("repetition_penalty", 0, "> 0"),
        ("repetition_penalty", float("inf"), "> 0"),
        ("seed", -1, "None or >= 0"),
        ("seed", "x", "None or >= 0"),
    ],
)
def test_parameters_that_make_no_sense_are_named(tiny, name, value, needed):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        sf.from_pretrained(tiny).generate("a", max_new_tokens=2, **{name: value})
    assert str(caught.value) == f"sampling: {name} is {value!r}, needs {needed}"
