"""What files of training data hold, which tokens are learned, and what is refused."""

import json

import numpy as np
import pytest

import simdformer as sf
from simdformer.text.chat import JinjaTemplate
from simdformer.training.answers import mark_conversations
from simdformer.training.data import IGNORED, AnswerRows, StreamRows, make_rows, rows_of_step
from simdformer.training.new_tokenizer import CHATML, make_tokenizer
from simdformer.training.sources import read_source, stage_of

CHAT = [
    {"role": "user", "content": "Who are you?"},
    {"role": "assistant", "content": "A small model."},
    {"role": "user", "content": "And I?"},
    {"role": "assistant", "content": "My teacher: Ä."},
]
SHAREGPT = [
    {"from": "human", "value": "Who are you?"},
    {"from": "gpt", "value": "A small model."},
]


def written(folder, name, content):
    path = folder / name
    if isinstance(content, list):
        content = "".join(json.dumps(line) + "\n" for line in content)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def llm_c(magic, version, count, dtype):
    """Ids 0, 1, 2, 3 behind a header."""
    header = np.array([magic, version, count, *[0] * 253], "<i4")
    return header.tobytes() + np.arange(4, dtype=dtype).tobytes()


@pytest.mark.parametrize(
    ("name", "content", "kind", "count", "stage"),
    [
        ("a.txt", "One.\n\nTwo\nlines.\n\n\n", "text", 2, "pretrain"),
        ("a.txt", "One.\n\nstill<|endoftext|>\nTwo.", "text", 2, "pretrain"),
        ("a.txt", "One.\r\n\r\nTwo\r\nlines.\r\n", "text", 2, "pretrain"),
        ("a.txt", "One.\r\rTwo\rlines.\r", "text", 2, "pretrain"),
        ("a.jsonl", [{"text": "One."}, {"text": "Two."}], "text", 2, "pretrain"),
        ("a.jsonl", [{"messages": CHAT}], "messages", 1, "sft"),
        ("a.jsonl", [{"conversations": SHAREGPT}], "messages", 1, "sft"),
        ("a.jsonl", [{"prompt": "1 + 1 =", "completion": " 2"}], "completion", 1, "sft"),
        ("a.bin", np.arange(5, dtype="<u2").tobytes(), "ids", 1, "pretrain"),
        ("a.bin", llm_c(20240520, 1, 4, "<u2"), "ids", 1, "pretrain"),
        ("a.bin", llm_c(20240801, 7, 4, "<u4"), "ids", 1, "pretrain"),
    ],
)
def test_a_file_is_recognised(tmp_path, name, content, kind, count, stage):
    source = read_source(written(tmp_path, name, content))
    assert (source.kind, len(source.documents), stage_of([source])) == (kind, count, stage)
    if name == "a.bin":
        assert source.documents[0].tolist() == [0, 1, 2, 3, 4][: len(source.documents[0])]
    if name == "a.txt":
        assert not any(document.endswith("\n") or "\r" in document for document in source.documents)
    if kind == "messages":
        assert source.documents[0][:2] == CHAT[:2]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"abc", r"found 3 bytes, needs ids of 16 bits"),
        (llm_c(20240801, 8, 4, "<u4"), r"found version 8 of llm.c's ids, needs 7"),
        (llm_c(20240801, 7, 5, "<u4"), r"found 1,040 bytes, needs 1,044 for the 5 ids"),
        (llm_c(20240520, 1, 1, "<u2")[:-6], r"found 1026 bytes, needs ids of 16 bits, two or more"),
    ],
)
def test_ids_that_are_none(tmp_path, content, message):
    with pytest.raises(ValueError, match=rf"a\.bin: {message}"):
        read_source(written(tmp_path, "a.bin", content))


def test_files_for_two_stages_are_refused(tmp_path):
    text = read_source(written(tmp_path, "a.txt", "One."))
    chat = read_source(written(tmp_path, "b.jsonl", [{"messages": CHAT}]))
    with pytest.raises(ValueError, match=r"a.txt holds text, .*b.jsonl holds JSON lines, "):
        stage_of([text, chat])


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    texts = [message["content"] for message in CHAT] * 3
    return make_tokenizer(texts, 300, tmp_path_factory.mktemp("tokenizer"))


def test_a_new_tokenizer_gives_every_text_back(tokenizer):
    assert tokenizer.vocab_size <= 300
    for text in ("My teacher: Ä.", "\n 日本 <|im_start|>"):
        assert tokenizer.decode(tokenizer.encode(text), skip_special=True) == text
    assert tokenizer.encode("x")[0] == tokenizer.bos_id


# Gives early answers without what stands in front of the last one.
FORGETS = (
    "{% for m in messages %}{{ m['role'] }}: {% if m['role'] == 'assistant' and loop.last %}"
    "<think>{% endif %}{{ m['content'] }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@pytest.mark.parametrize(
    ("template", "learned"),
    [
        (CHATML, ["A small model.<|im_end|>", "My teacher: Ä.<|im_end|>"]),
        (FORGETS, ["<think>My teacher: Ä.<|im_end|>"]),
    ],
)
def test_only_what_the_assistant_says_is_learned(tokenizer, template, learned):
    template = JinjaTemplate(template, "template", {})
    for ids, marks in mark_conversations(template, tokenizer, [CHAT, CHAT]):
        cuts = np.flatnonzero(np.diff(marks.astype(int), prepend=0, append=0)).reshape(-1, 2)
        assert [tokenizer.decode(ids[begin:end]) for begin, end in cuts] == learned


LOOKS_AT_THE_FIRST = "{% if messages[0].role == 'system' %}{% endif %}" + CHATML
NO_HELLO = "{% for m in messages if m.content == 'Hello.' %}{{ raise_exception('no') }}{% endfor %}"


def began(content):
    """A conversation that the assistant begins."""
    return [{"role": "assistant", "content": content}, *CHAT[:2]]


@pytest.mark.parametrize(
    ("template", "learned"),
    [
        (CHATML, ["Hello.<|im_end|>", "A small model.<|im_end|>"]),
        (LOOKS_AT_THE_FIRST, ["A small model.<|im_end|>"]),
    ],
)
def test_the_assistant_may_begin(tokenizer, template, learned):
    template = JinjaTemplate(template, "template", {})
    given = [CHAT[:2], began("Hello."), began("Hello.")[:1]]
    _, (ids, marks), (_, alone) = mark_conversations(template, tokenizer, given)
    assert tokenizer.decode(ids[marks]) == "".join(learned)
    assert alone.any() == (len(learned) == 2)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([{"messages": CHAT}, {"messages": began("Hello.")}], r"line 2: template: .* failed: no$"),
        ([{"chosen": CHAT, "rejected": began("Hello.")}], r"line 1: template: .* failed: no$"),
        (
            [{"text": "One."}, {"text": "x \ud800"}],
            r"line 2: .* the lone surrogate '\\ud800' in it",
        ),
        ([{"messages": began("\udfff")}], r"line 1: .* the lone surrogate '\\udfff' in it"),
    ],
)
def test_the_line_that_cannot_be_learned_is_named(tmp_path, tokenizer, lines, message):
    template = JinjaTemplate(NO_HELLO + CHATML, "template", {})
    with pytest.raises(ValueError, match=rf"a\.jsonl, {message}"):
        make_rows([read_source(written(tmp_path, "a.jsonl", lines))], tokenizer, template, 32)


def test_a_pair_of_escapes_is_one_character(tmp_path):
    source = read_source(written(tmp_path, "a.jsonl", r'{"text": "\ud83d\ude00"}'))
    assert source.documents == ["😀"]


def test_llama_3s_own_template_marks_answers_too():
    model = sf.from_pretrained(sf.demo_path())
    ((ids, marks),) = mark_conversations(model.chat_template, model.tokenizer, [CHAT[:2]])
    assert model.tokenizer.decode(ids[marks]) == "A small model.<|eot_id|>"


def test_labels_are_the_ids_that_follow():
    rows = StreamRows(np.arange(33, dtype=np.uint16), 8)
    ids, labels = rows.batch([3, 0])
    assert ids.tolist() == [[*range(24, 32)], [*range(8)]]
    assert (labels == ids + 1).all()
    with pytest.raises(ValueError, match="has 8 tokens, needs more than --context = 8"):
        StreamRows(np.arange(8), 8)


def test_rows_of_answers_are_padded_with_nothing_to_learn():
    marks = np.array([False, False, True, True])
    rows = AnswerRows([(np.arange(1, 5), marks), (np.arange(40), np.arange(40) > 38)], 32)
    ids, labels = rows.batch([0])
    assert len(rows) == 1  # the other one's answer comes too late
    assert ids.shape == (1, 16)
    assert labels[0, :4].tolist() == [IGNORED, 3, 4, IGNORED]
    assert "1 left out" in rows.said()


def test_text_becomes_one_stream_of_documents(tmp_path, tokenizer):
    source = read_source(written(tmp_path, "a.txt", "One.\n\nTwo."))
    rows = make_rows([source], tokenizer, None, 2)
    assert tokenizer.decode(rows.ids) == "<|im_start|>One.<|im_end|><|im_start|>Two.<|im_end|>"
    with pytest.raises(ValueError, match="needs a tokenizer"):
        make_rows([source], None, None, 2)


def test_every_row_comes_once_an_epoch_in_an_order_of_its_own():
    steps = [rows_of_step(step, 4, 10, seed=3) for step in range(5)]
    flat = [row for step in steps for row in step]
    assert sorted(flat[:10]) == sorted(flat[10:]) == list(range(10))
    assert flat[:10] != flat[10:] != list(range(10))
    assert steps[3] == rows_of_step(3, 4, 10, seed=3)  # from the number of the step alone
