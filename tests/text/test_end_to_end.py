"""From a directory as it is published to text: encode, generate, decode, chat. Real tokenizers,
tiny models; what they say makes no sense, but it is what transformers makes them say."""

import copy
import io
import json
import sys
import typing

import numpy as np
import pytest
import torch

import simdformer as sf
import tiny_models
from simdformer.text import LanguageModel, TextStreamer
from simdformer.text.language_model import GenerateOptions

PROMPT = "Hello, wörld! 日本 1 + 1 ="
TALK = [{"role": "user", "content": "What is 6 * 7?"}]
IDS = np.random.default_rng(11).integers(0, 96, (2, 40))


@pytest.fixture(scope="module")
def directory(shared, tmp_path_factory):
    """directory(kind) is a checkpoint with its tokenizer, and transformers' model of it."""
    made = {}

    def directory(kind):
        if kind not in made:
            made[kind] = PUBLISHED[kind](shared / "data", tmp_path_factory.mktemp(kind))
        return made[kind]

    return directory


@pytest.fixture(scope="module")
def opened(directory):
    """opened(kind) is our model of that checkpoint, and transformers'."""
    made = {}

    def opened(kind):
        if kind not in made:
            folder, theirs = directory(kind)
            made[kind] = sf.from_pretrained(folder), theirs
        return made[kind]

    return opened


def link(folder, *files):
    for file in files:
        (folder / file.name).symlink_to(file)
    return folder


def qwen2(data, folder):
    """config.json, model.safetensors in bfloat16, vocab.json with merges.txt."""
    model = tiny_models.make("qwen2", vocab_size=151936, eos_token_id=151645)
    model = tiny_models.rounded(model, torch.bfloat16)
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(folder)
    files = [data / "qwen2" / f for f in ("vocab.json", "merges.txt", "tokenizer_config.json")]
    return link(folder, *files), model


def minimind(data, folder):
    """full_sft.pth with its config.json, tokenizer.json."""
    model = tiny_models.make("qwen3", vocab_size=6400, head_dim=8)
    torch.save(model.state_dict(), folder / "full_sft.pth")
    config = model.config.to_dict() | {"model_type": "minimind", "rope_theta": 10000.0}
    keep = {*tiny_models.SIZES, "head_dim", "rms_norm_eps", "rope_theta", "model_type"}
    config = {name: config[name] for name in keep - {"pad_token_id"}} | {"eos_token_id": 2}
    config |= {"hidden_act": "silu", "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config))
    files = [data / "minimind" / name for name in ("tokenizer.json", "tokenizer_config.json")]
    return link(folder, *files), model


def llama3(data, folder):
    """params.json, two shards in bfloat16, tokenizer.model."""
    model = tiny_models.rounded(tiny_models.make("llama3", vocab_size=128256), torch.bfloat16)
    params = tiny_models.meta_params(vocab_size=128256)
    tiny_models.save_meta(folder, model, params, shards=2, dtype=torch.bfloat16)
    return link(folder, data / "llama3" / "tokenizer.model"), model


PUBLISHED = {"qwen2": qwen2, "minimind": minimind, "llama3": llama3}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", PUBLISHED)
def test_text_in_text_out(opened, kind):
    model, theirs = opened(kind)
    ids = model.tokenizer.encode(PROMPT)
    assert model.tokenizer.decode(ids, skip_special=True) == PROMPT
    expected = tiny_models.greedy(theirs, np.array(ids), 20)
    seen = io.StringIO()
    text = model.generate(PROMPT, max_new_tokens=20, streamer=TextStreamer(seen))
    assert seen.getvalue() == text + "\n"
    found = model.generate(ids, max_new_tokens=20)
    assert found == expected[: len(found)]
    assert len(found) == 20 or expected[len(found)] in (*model.eos_ids, *model.tokenizer.eos_ids)
    assert text == model.tokenizer.decode([*ids, *found], skip_special=True).removeprefix(PROMPT)
    together = model.generate([PROMPT, "a"], max_new_tokens=20)
    assert together == [text, model.generate("a", max_new_tokens=20)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", PUBLISHED)
def test_a_chat_is_the_text_behind_the_template(opened, kind):
    model, theirs = opened(kind)
    answer = model.chat(TALK, 12)
    ids = model.chat_template.ids(TALK, model.tokenizer, {})
    written = model.tokenizer.decode(ids)
    assert "What is 6 * 7?" in written
    assert "assistant" in written.rpartition("7?")[2]
    expected = tiny_models.greedy(theirs, np.array(ids), 12)
    found = model.generate(ids, max_new_tokens=12)
    assert found == expected[: len(found)]
    stream = model.tokenizer.stream()
    stream.put(ids[-1])
    assert answer == "".join(map(stream.put, found)) + stream.flush()


@pytest.mark.parametrize("kind", PUBLISHED)
def test_logits_need_no_package_of_a_tokenizer(directory, kind, monkeypatch):
    folder, theirs = directory(kind)
    for name in ("tokenizers", "tiktoken", "sentencepiece", "jinja2", "transformers"):
        monkeypatch.setitem(sys.modules, name, None)
    model = sf.from_pretrained(folder)
    expected = tiny_models.logits(theirs, IDS)
    assert np.abs(model(IDS) - expected).max() <= 1e-5 * np.abs(expected).max()
    prompt = IDS[0, :7]
    assert model.generate(prompt, max_new_tokens=4) == tiny_models.greedy(theirs, prompt, 4)
    asks = [
        lambda: model.generate("text", max_new_tokens=4),
        lambda: model.chat(TALK),
        lambda: model.tokenizer.encode("text"),
    ]
    if kind != "llama3":  # whose ids become text without tiktoken
        asks.append(lambda: model.generate(prompt, max_new_tokens=4, stop="text"))
    for ask in asks:
        with pytest.raises(ImportError, match=r"pip install simdformer\[models\]"):
            ask()


def test_without_a_package_and_without_ids_that_end_a_text_generation_asks_for_it(
    directory, tmp_path, monkeypatch
):
    """It would otherwise go on behind the end."""
    folder, _ = directory("minimind")
    link(tmp_path, *(file for file in folder.iterdir() if file.name != "config.json"))
    config = json.loads((folder / "config.json").read_text())
    config.pop("eos_token_id")
    (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    model = sf.from_pretrained(tmp_path)
    assert model([1, 2]).shape == (2, 6400)
    with pytest.raises(ImportError, match="tokenizers"):
        model.generate([1, 2], max_new_tokens=2)


# ---- every architecture --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model_of(tmp_path_factory):
    made = {}

    def model_of(name):
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            tiny_models.make(name).save_pretrained(folder)
            made[name] = sf.from_pretrained(folder)
        return made[name]

    return model_of


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", tiny_models.MODELS)
def test_a_batch_of_unequal_prompts_is_each_alone(model_of, name):
    model = model_of(name)
    prompts = [IDS[0, :9].tolist(), IDS[1, :2].tolist(), IDS[1, :31].tolist()]
    alone = [model.generate(prompt, max_new_tokens=16) for prompt in prompts]
    assert model.generate(prompts, max_new_tokens=16) == alone
    assert len({tuple(ids) for ids in alone}) == 3


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", tiny_models.MODELS)
@pytest.mark.parametrize("cache_dtype", ["float32", "float16", "bfloat16"])
def test_generation_is_the_same_with_and_without_a_cache(model_of, name, cache_dtype):
    """A cache of 16 bits rounds keys and values: what it leads to is what it says by hand."""
    model = model_of(name)
    prompt = IDS[0, :9].tolist()
    found = model.generate(prompt, max_new_tokens=16, cache_dtype=cache_dtype)
    text, boundary = list(prompt), model.config.rope_boundary
    cache = model.new_cache(40, dtype=cache_dtype)
    for _ in range(16):
        if boundary is not None and cache.length <= boundary < len(text):
            cache.reset()  # what is in it was turned as in a short text
        if cache_dtype == "float32":
            logits = model(text, logits_to_keep=1)
        else:
            logits = model(text[cache.length :], cache, logits_to_keep=1)
        text.append(int(logits[-1].argmax()))
    assert found == text[9:]


# ---- streamers and types -------------------------------------------------------------------------


def test_a_text_streamer_writes_to_stdout_or_a_file(model_of, capsys):
    model = model_of("qwen3")
    ids = model.generate([1, 2, 3], max_new_tokens=4, streamer=TextStreamer())
    assert capsys.readouterr().out == " ".join(map(str, ids)) + " \n"
    file = io.StringIO()
    model.generate([1, 2, 3], max_new_tokens=4, streamer=TextStreamer(file, end="!"))
    assert file.getvalue() == " ".join(map(str, ids)) + " !"
    assert capsys.readouterr() == ("", "")


def test_the_overloads_of_generate_know_every_keyword():
    overloads = typing.get_overloads(LanguageModel.generate)
    returned = [typing.get_type_hints(overload)["return"] for overload in overloads]
    assert returned == [str, list[str], list[int], list[list[int]], typing.Any]
    implementation = typing.get_type_hints(LanguageModel.generate)
    implementation |= typing.get_type_hints(implementation.pop("sampling").__args__[0])
    options = typing.get_type_hints(GenerateOptions)
    for name in ("return", "prompt", "max_new_tokens"):
        implementation.pop(name)
    assert options == implementation
