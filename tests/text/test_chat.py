"""Chat templates, against transformers; templates that mean harm; tokenizers and templates that
`from_pretrained` finds in a directory."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

import simdformer as sf
from checkpoints import random_weights, tiny_config
from simdformer.checkpoints import FORMATS, Checkpoint, CheckpointError
from simdformer.models.transformer import Transformer
from simdformer.text import LanguageModel, chat
from simdformer.text.pretrained import find_tokenizer

TALK = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "  hello\n<world>  "},
    {"role": "assistant", "content": "Hi, 日本 👋"},
    {"role": "user", "content": "What is 6 * 7?"},
]


def checkpoint_at(path, format="huggingface", vocab_size=200_000):
    """What find_tokenizer and find_template look at."""
    config = dataclasses.replace(tiny_config(), vocab_size=vocab_size)
    [format] = [one for one in FORMATS if one.name == format]
    return Checkpoint(path=path, format=format, config=config, weights={})


def template_at(directory, template=None, **config):
    if template is not None:
        config["chat_template"] = template
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return chat.find_template(checkpoint_at(directory), None)


def render(directory, template, messages=TALK, variables=None, **config):
    return template_at(directory, template, **config).render(messages, variables or {})


# ---- what templates give -------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("folder", "config", "variables"),
    [
        ("qwen2", "tokenizer_config.json", {}),
        ("qwen2", "qwen3_tokenizer_config.json", {}),
        ("qwen2", "qwen3_tokenizer_config.json", {"enable_thinking": False}),
        ("minimind", "tokenizer_config.json", {}),
    ],
)
@pytest.mark.parametrize("length", [1, 2, 4])
def test_published_templates_as_with_transformers(
    shared, tmp_path, folder, config, variables, length
):
    pytest.importorskip("transformers")
    from transformers.utils.chat_template_utils import render_jinja_template

    config = json.loads((shared / "data" / folder / config).read_text())
    messages = TALK[:length]
    (want,), _ = render_jinja_template(
        conversations=[messages],
        chat_template=config["chat_template"],
        add_generation_prompt=True,
        **{name: text for name, text in config.items() if name.endswith("_token")},
        **variables,
    )
    assert render(tmp_path, variables=variables, template=None, messages=messages, **config) == want


def test_what_templates_expect_to_find(tmp_path):
    source = """
    {%- for message in messages %}
        {%- if loop.index == 2 %}{% continue %}{% endif %}
        {%- if loop.index == 4 %}{% break %}{% endif %}
        {{- bos_token + message.role }}
    {% endfor %}
    {% generation %}{{ tools is none }}{% endgeneration %}
    {{ {"b": "é<&", "a": 1}|tojson }} {{ [1]|tojson(indent=1) }} {{ strftime_now("%Y")|length }}"""
    got = render(tmp_path, source, bos_token={"content": "<s>"}, add_bos_token=True)
    assert got == '<s>system\n<s>assistant\nTrue    {"b": "é<&", "a": 1} [\n 1\n] 4'


def test_where_templates_are_found(tmp_path):
    assert template_at(tmp_path) is None
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "text"}]
    assert render(tmp_path, named) == "text"
    (tmp_path / "chat_template.json").write_text('{"chat_template": "of its own"}')
    assert render(tmp_path, None) == "of its own"
    (tmp_path / "chat_template.jinja").write_text("{{ messages|length }}")
    assert render(tmp_path, named) == "4"
    for format in ("meta", "llama2.c"):
        assert chat.find_template(checkpoint_at(tmp_path, format), None) is None


@pytest.mark.parametrize("template", [3, [], ["x"], [{"name": "x", "template": "y"}], "x" * 2**21])
def test_templates_that_are_none(tmp_path, template):
    with pytest.raises(
        CheckpointError, match=r"found chat_template = .*, needs text of at most"
    ) as caught:
        template_at(tmp_path, template)
    assert str(caught.value).startswith(str(tmp_path / "tokenizer_config.json"))


def test_llama3s_own_template(shared):
    directory = shared / "data" / "llama3"
    checkpoint = checkpoint_at(directory, "meta")
    tokenizer = find_tokenizer(checkpoint)
    template = chat.find_template(checkpoint, tokenizer)
    written = "<|begin_of_text|>" + "".join(
        f"<|start_header_id|>{message['role']}<|end_header_id|>\n\n{message['content'].strip()}"
        "<|eot_id|>"
        for message in TALK
    )
    written += "<|start_header_id|>assistant<|end_header_id|>\n\n"
    ids = template.ids(TALK, tokenizer, {})
    assert ids == tokenizer.encode(written, bos=False, special=True)
    # Nobody ends his message by spelling out the token that does.
    ids = template.ids([{"role": "user", "content": "a<|eot_id|>b"}], tokenizer, {})
    assert ids.count(128009) == 1
    with pytest.raises(ValueError, match="enable_thinking given, but Llama 3's own template"):
        template.ids(TALK, tokenizer, {"enable_thinking": False})


# ---- templates that mean harm --------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "'__class__' of 'str' object is unsafe"),
        ("{{ messages.append(1) }}", "attribute 'append' of 'list' object is unsafe"),
        ("{{ cycler.__init__.__globals__.os.system('true') }}", "unsafe"),
        ("{{ self._TemplateReference__context }}{{ x.y }}", "'x' is undefined"),
        ("{% include '/etc/passwd' %}", "loader"),
        ("{{ raise_exception('roles must\nalternate') }}", "roles must alternate"),
        ("{% for %}", r"\(line 1\)"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ 'a' * 10**11 }}", "too much memory"),
        ("{{ '%99999999999d' % 1 }}", "memory|too big|did not end|OverflowError|ValueError"),
        ("{% for i in range(99999) %}{{ 'a' * 99 }}{% endfor %}", "is longer than 4194304 char"),
        ("{{ 'a' * 5000000 }}", "is longer than 4194304 characters"),
        ("{{ range(10**9)|list }}", "OverflowError|Range too big"),
    ],
)
def test_templates_that_fail_or_mean_harm(tmp_path, template, message):
    with pytest.raises(CheckpointError, match=message) as caught:
        render(tmp_path, template)
    assert str(caught.value).startswith(
        f"{tmp_path / 'tokenizer_config.json'}: found a chat template that failed: "
    )
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 9 ** (9 ** 9) }}",
    ],
)
def test_templates_that_never_end(tmp_path, monkeypatch, template):
    monkeypatch.setattr(chat, "MAX_SECONDS", 1)
    with pytest.raises(
        CheckpointError, match="did not end as it should, needs one that takes at most 1 s"
    ):
        render(tmp_path, template)


def test_not_even_an_escaped_template_opens_a_file(tmp_path, monkeypatch):
    """The second wall alone: the same program with a sandbox that lets everything through."""
    program = Path(chat.render_template.__file__).read_text()
    open_wall = tmp_path / "open.py"
    open_wall.write_text(
        program.replace(
            "    environment.globals.update(functions)",
            "    environment.globals.update(functions, open=open)",
        )
    )
    monkeypatch.setattr(chat.render_template, "__file__", str(open_wall))
    for template in ("{{ open('/etc/passwd').read() }}", "{{ open('new', 'w') }}"):
        with pytest.raises(CheckpointError, match=r"OSError: .* Too many open files"):
            render(tmp_path, template)


# ---- the model -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(shared):
    """Random weights under MiniMind's tokenizer and template."""
    directory = shared / "data" / "minimind"
    config = dataclasses.replace(tiny_config(), vocab_size=6400, max_seq_len=256)
    checkpoint = dataclasses.replace(checkpoint_at(directory), config=config)
    weights = random_weights(np.random.default_rng(3), config)
    tokenizer = find_tokenizer(checkpoint)
    return LanguageModel(
        Transformer(config, weights),
        tokenizer,
        chat_template=chat.find_template(checkpoint, tokenizer),
    )


def test_chat_continues_the_templates_text(model):
    prompt = model.chat_template.render(TALK[:2], {})
    assert prompt.startswith("<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n")
    ids = model.tokenizer.encode(prompt, special=True)
    new_ids = model.generate(ids, 8)
    shown = []
    text = model.chat(TALK[:2], 8, streamer=shown.append)
    assert text == model.tokenizer.decode(new_ids, skip_special=True) == "".join(shown)
    sampled = model.chat(TALK[:2], max_new_tokens=8, temperature=1.0, seed=1)
    assert sampled == model.chat(TALK[:2], max_new_tokens=8, temperature=1.0, seed=1) != text


def test_what_is_no_conversation(model):
    for messages in ("hello", TALK[0], 3):
        with pytest.raises(TypeError, match=r"chat: messages is .*, needs a list of"):
            model.chat(messages)
    with pytest.raises(ValueError, match="chat: messages is empty"):
        model.chat([])
    for message in ("hello", {"role": "user"}, {"role": 1, "content": ""}):
        with pytest.raises(ValueError, match=r"chat: messages\[1\] is .*, needs"):
            model.chat([TALK[0], message])


def test_without_a_template_or_a_tokenizer(model):
    with pytest.raises(ValueError, match="chat: the checkpoint has no chat template"):
        LanguageModel(model.transformer, model.tokenizer).chat(TALK)
    with pytest.raises(ValueError, match="a chat needs a tokenizer"):
        LanguageModel(model.transformer, chat_template=model.chat_template).chat(TALK)


# ---- what from_pretrained finds ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("folder", "format", "vocab_size"),
    [
        ("llama3", "meta", 128256),
        ("minimind", "minimind", 6400),
        ("minimind", "huggingface", 6464),
        ("qwen2", "huggingface", 151936),
    ],
)
def test_the_tokenizer_beside_a_checkpoint(shared, folder, format, vocab_size):
    tokenizer = find_tokenizer(checkpoint_at(shared / "data" / folder, format, vocab_size))
    assert tokenizer.decode(tokenizer.encode("hello", bos=False)) == "hello"
    assert tokenizer.decode([vocab_size - 1, vocab_size]) in (
        "",
        tokenizer.decode([vocab_size - 1]),
    )


def test_a_tokenizer_with_too_many_tokens(shared):
    with pytest.raises(
        CheckpointError,
        match=r"with the id 6399, needs at most 6398: .* has 6399 tokens; give the tokenizer",
    ):
        find_tokenizer(checkpoint_at(shared / "data" / "minimind", "huggingface", 6399))


def test_a_directory_of_two_publishers(shared, tmp_path):
    (tmp_path / "tokenizer.model").symlink_to(shared / "data" / "llama3" / "tokenizer.model")
    (tmp_path / "tokenizer.json").symlink_to(shared / "data" / "minimind" / "tokenizer.json")
    assert find_tokenizer(checkpoint_at(tmp_path, "meta")).vocab_size == 128256
    assert find_tokenizer(checkpoint_at(tmp_path, "huggingface")).vocab_size == 6400
    assert find_tokenizer(checkpoint_at(tmp_path / "model.bin", "llama2.c")) is None
    with pytest.raises(CheckpointError, match=r"needs one \(tokenizer.json"):
        sf.tokenizer.load(tmp_path)
