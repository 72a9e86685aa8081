"""Many prompts at once: what each gets is what it gets alone, bit for bit."""

import dataclasses

import numpy as np
import pytest

from cases import each
from checkpoints import random_model, random_weights
from conftest import same_bits
from simdformer.models import Transformer
from simdformer.text import LanguageModel, Report

VARIANTS = {
    "plain": {},
    "windows": {"sliding_window": 20},
    "one key/value head": {"num_kv_heads": 1},
    "longrope": {
        "rope_scaling": {
            "rope_type": "longrope",
            "short_factor": [1.0, 1.1, 1.2, 1.4],
            "long_factor": [1.0, 3.0, 9.0, 30.0],
            "original_max_position_embeddings": 64,
            "factor": 20.0,
        }
    },
    "experts": {"num_experts": 5, "num_experts_per_tok": 2, "expert_intermediate_size": 12},
}


@pytest.fixture(scope="module", params=list(VARIANTS))
def tiny(request):
    return LanguageModel(random_model(max_seq_len=1200, **VARIANTS[request.param])[0])


def page_bytes(model):
    return model.new_cache().pages.page_bytes


def prompts_of(rng, count, vocabulary):
    """Of one id and of many; some begin alike, some are the same."""
    beginning = rng.integers(1, vocabulary, 90).tolist()
    prompts = []
    for _ in range(count):
        own = rng.integers(1, vocabulary, rng.integers(1, 60)).tolist()
        prompts.append(beginning[: rng.choice([0, 40, 90])] + own)
    return [*prompts, prompts[-1], [1], rng.integers(1, vocabulary, 700).tolist()]


@pytest.mark.sampled(3)
def test_forty_prompts_are_each_as_alone(isa, tiny, rng):
    prompts = prompts_of(rng, 37, tiny.config.vocab_size)
    together = Report()
    answers = tiny.generate(prompts, max_new_tokens=6, report=together, max_batch=16)
    for prompt, answer, logits in zip(prompts, answers, together.logits, strict=True):
        alone = Report()
        assert tiny.generate(prompt, max_new_tokens=6, report=alone) == answer
        assert same_bits(alone.logits[0], logits)


def test_a_text_of_longrope_is_that_of_the_model_by_hand(rng):
    """Each id follows from all before it, read at once without a cache."""
    model = LanguageModel(random_model(max_seq_len=1200, **VARIANTS["longrope"])[0])
    beginning = rng.integers(
        1, model.config.vocab_size, 70
    ).tolist()  # of short texts and of long ones
    prompts = [beginning[:count] for count in (40, 59, 64, 65, 70)]
    for draft in (None, "prompt"):
        answers = model.generate(prompts, max_new_tokens=12, draft=draft)
        for prompt, answer in zip(prompts, answers, strict=True):
            for at, id in enumerate(answer):
                assert model([*prompt, *answer[:at]], logits_to_keep=1)[-1].argmax() == id


def test_arrivals_at_any_time_change_nothing(tiny, rng):
    prompts = prompts_of(rng, 9, tiny.config.vocab_size)
    batch = tiny.batch(max_batch=4, cache_memory=60 * page_bytes(tiny))
    waiting, said, ended = list(enumerate(prompts)), {}, set()
    numbers = {}
    while waiting or batch.unfinished:
        while waiting and rng.random() < 0.4:
            at, prompt = waiting.pop()
            numbers[batch.add(prompt, max_new_tokens=3 + at)] = at
        for update in batch.step():
            assert update.id not in ended
            said.setdefault(numbers[update.id], []).extend(update.new)
            if update.ended:
                ended.add(update.id)
    for at, prompt in enumerate(prompts):
        assert said[at] == tiny.generate(prompt, max_new_tokens=3 + at)


def test_a_common_beginning_is_read_once(demo):
    story = demo.tokenizer.encode("Once upon a time there was a big dog. " * 12)
    read = []
    whole = demo.transformer.forward_batch
    demo.transformer.forward_batch = lambda run: read.append(run.ids.shape[1]) or whole(run)
    try:
        demo.generate([[*story, 5, end] for end in range(3, 11)], max_new_tokens=1)
    finally:
        del demo.transformer.forward_batch
    once = len(story) // 32 * 32
    assert sum(read) == len(story) + 2 + 7 * (len(story) + 2 - once)


def test_every_prompt_has_random_numbers_of_its_own(demo):
    how = {"max_new_tokens": 12, "temperature": 1.0}
    prompts = ["Once", "Tom", "Once"]
    alone = [demo.generate(prompt, seed=4, **how) for prompt in prompts]
    assert demo.generate(prompts, seed=4, **how) == alone
    several = demo.generate(prompts, seed=[4, 5, 6], **how)
    assert several[0] == alone[0]
    assert several[2] == demo.generate("Once", seed=6, **how)
    with pytest.raises(ValueError, match=r"seed is \[1\], needs a number, or one for each of"):
        demo.generate(prompts, seed=[1], **how)


def test_a_cache_is_kept_between_calls(demo):
    cache = demo.new_cache()
    story = demo.generate("Once upon a time", max_new_tokens=80)
    assert demo.generate("Once upon a time", max_new_tokens=80, cache=cache) == story
    ids = demo.tokenizer.encode("Once upon a time" + story)
    assert cache.pages.open(ids).length >= 64
    report = Report()
    more = demo.generate(ids, max_new_tokens=8, cache=cache, report=report)
    assert (report.prompt_ids, report.cached_ids) == (len(ids), (len(ids) - 2) // 32 * 32)
    assert more == demo.generate(ids, max_new_tokens=8)
    np.testing.assert_allclose(
        report.logits[0], demo([*ids, *more[:7]], logits_to_keep=1)[0], rtol=1e-3, atol=1e-3
    )
    assert cache.pages.free_pages is None


def test_a_batch_for_programs(demo):
    batch = demo.batch(max_batch=2)
    texts = {batch.add(text, max_new_tokens=9): text for text in ("Once upon", "Tom", "Mia has")}
    assert repr(batch) == "Batch(0 running, 3 waiting)"
    said = dict.fromkeys(texts, "")
    for update in batch.step():
        said[update.id] += update.new
    assert repr(batch) == "Batch(2 running, 1 waiting)"
    cancelled = list(texts)[1]
    update = batch.cancel(cancelled)
    assert update.ended
    with pytest.raises(KeyError, match="no text 2 goes on"):
        batch.cancel(cancelled)
    while batch.unfinished:
        for update in batch.step():
            said[update.id] += update.new
    del texts[cancelled]
    for number, text in texts.items():
        assert said[number] == demo.generate(text, max_new_tokens=9)
    assert batch.step() == []
    with pytest.raises(ValueError, match=r"Batch.add: found is a list of prompts, needs one"):
        batch.add(["a", "b"])
    with pytest.raises(ValueError, match="sampling: temperature is -1"):
        batch.add("a", temperature=-1)


def test_prompts_wait_for_memory(demo):
    page = page_bytes(demo)
    prompts = ["Once upon a time", "Tom", "Mia has a red kite.", "The big dog"]
    expected = demo.generate(prompts, max_new_tokens=40)
    assert demo.generate(prompts, max_new_tokens=40, cache_memory=2 * page) == expected
    with pytest.raises(ValueError, match="take 3 pages of 32 positions, and the cache has 2"):
        demo.generate("Once", max_new_tokens=90, cache_memory=2 * page)
    with pytest.raises(ValueError, match="generate: cache_memory is 5 bytes, needs at least"):
        demo.generate("Once", max_new_tokens=9, cache_memory=5)
    with pytest.raises(TypeError, match="cache is 3, needs a KVCache"):
        demo.generate("Once", max_new_tokens=9, cache=3)
    with pytest.raises(ValueError, match="generate: max_batch is 0"):
        demo.generate("Once", max_new_tokens=9, max_batch=0)


def test_an_interrupted_batch_gives_its_pages_back(demo):
    cache = demo.new_cache(memory=40 * page_bytes(demo))

    def interrupt(piece):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        demo.generate("Once upon", max_new_tokens=30, cache=cache, streamer=interrupt)
    assert cache.pages.free_pages == 40


def test_a_batch_over_a_shared_cache_gives_its_pages_back(demo):
    """Closed, at the end of a with, or when nobody holds it any more."""
    cache = demo.new_cache(memory=40 * page_bytes(demo))

    def begun():
        batch = demo.batch(cache=cache)
        for text in ("Once upon a time", "Tom"):
            batch.add(text, max_new_tokens=30)
        batch.step()
        assert cache.pages.free_pages == 38
        return batch

    batch = begun()
    batch.close()
    assert (cache.pages.free_pages, batch.unfinished, batch.step()) == (40, 0, [])
    with pytest.raises(ValueError, match=r"Batch.add: the batch is closed; begin another with"):
        batch.add("Mia")
    with begun() as batch, pytest.raises(KeyError):
        batch.cancel(7)
    assert (cache.pages.free_pages, batch.unfinished) == (40, 0)
    batch = begun()
    del batch
    assert cache.pages.free_pages == 40


# ---- speculation ---------------------------------------------------------------------------------


SAMPLED = {"temperature": 0.7, "top_k": 5, "seed": 1}


@pytest.mark.sampled(3)
@each("how", [{}, {"temperature": 1.0, "seed": 3}, SAMPLED])
@each("draft", ["prompt", "itself", "another"])
def test_a_draft_changes_no_id(tiny, draft, how, rng):
    """Greedy or sampled, alone and in company; logits have the same bits."""
    drafts = {"prompt": "prompt", "itself": tiny, "another": another(tiny)}
    drafted = drafted_as_plain(tiny, drafts[draft], how, rng)
    if draft == "itself" and not how:
        assert drafted.accepted > 0.7 * drafted.drafted


def test_a_draft_changes_no_id_on_any_instruction_set(isa, tiny, rng):
    assert drafted_as_plain(tiny, another(tiny), SAMPLED, rng).drafted > 0


def drafted_as_plain(model, draft, how, rng):
    """The report of a generation with a draft, which is that of one without."""
    prompts = [*prompts_of(rng, 3, model.config.vocab_size), [7, 8, 9] * 20]
    plain, drafted = Report(), Report()
    answers = model.generate(prompts, max_new_tokens=15, report=plain, **how)
    with_draft = model.generate(prompts, max_new_tokens=15, report=drafted, draft=draft, **how)
    assert with_draft == answers
    assert same_bits(drafted.logits, plain.logits)
    assert drafted.new_ids == plain.new_ids
    assert 0 <= drafted.accepted <= drafted.drafted
    return drafted


def another(model):
    config = dataclasses.replace(model.config, num_layers=1)
    return Transformer(config, random_weights(np.random.default_rng(9), config), dtype="float32")


def test_a_text_that_repeats_itself_is_read_in_fewer_steps(demo):
    prompt = "red blue green red blue green red blue green red blue"
    plain, drafted = Report(), Report()
    text = demo.generate(prompt, max_new_tokens=60, report=plain)
    assert demo.generate(prompt, max_new_tokens=60, draft="prompt", report=drafted) == text
    assert drafted.accepted > plain.new_ids / 2
    for stop in ("blue", "ee"):
        assert (
            demo.generate(prompt, max_new_tokens=60, draft="prompt", stop=stop)
            == text.split(stop)[0]
        )
    small, _ = random_model(vocab_size=9)
    with pytest.raises(ValueError, match="draft has a vocabulary of 9, needs that of the model"):
        demo.generate(prompt, max_new_tokens=4, draft=small)
    with pytest.raises(ValueError, match="draft is 'ngram', needs \"prompt\" or a model"):
        demo.generate(prompt, max_new_tokens=4, draft="ngram")
