"""Plain English and the field's words: forms that may not occur in docs, docstrings, comments and
messages, each with what to say instead. Many readers have another first language."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
OTHERS: set[str] = set()
PAGES = [page for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")] if page.name not in OTHERS]


class Form(NamedTuple):
    pattern: str
    say: str  # what to say instead
    wrong: str  # a text that has it
    right: str  # one that is near, and fine
    where: str = ""  # the files whose path contains this


BANNED = [
    Form(
        r"\bfore(?:tells?|told|telling)\b",
        "predict",
        "how well it foretells a text",
        "how well it predicts a text",
    ),
    Form(r"\bso manieth\b", "the n-th", "the so manieth id", "the n-th id"),
    Form(
        r"\b(?:has|have|had) not(?= (?:an?|any|the|its|one|enough)\b|[.,;:)]|$)",
        "does not have",
        "names that it has not.",
        "weights that have not changed.",
    ),
    Form(
        r"(?<![\w`*\"'] )\bOf (?!course)",
        "the subject first: 'The rest of a panel' and not 'Of a panel the rest'",
        "It ends. Of a panel that is not full the rest is zero.",
        "Half of a panel. Of course not. The Origin Of Species.",
    ),
    Form(
        r"[;:] of (?:an?|each|every)\b",
        "the subject first",
        "it keeps all; of a long text the first part",
        "it is a part of a long text",
    ),
    Form(
        r"\bbesides(?=[.,;:)\"]|$)",
        "also, beyond, apart from",
        "it has a norm besides",
        "beside the norm",
    ),
    Form(
        r"(?:^|(?<=[.:!] ))Who\b[^?.!]*[.!](?=\s|$)",
        "somebody who, or: if you",
        "Thanks. Who has PyTorch, calls it.",
        "Who does it? If you have PyTorch, call it.",
    ),
    Form(r"\bshall\b", "must, should, will", "it shall end", "it must end"),
    Form(r"\bcommonest\b", "most common", "the commonest error", "the most common error"),
    Form(
        r"\banother (?:\w+ )?than\b",
        "different from, not",
        "it is another one than before",
        "it differs from the one before; another one, then",
    ),
    Form(
        r"\blisten(?:s|ed|ing)? to\b",
        "attend to, a model's heads have no ears",
        "whom each head listens to",
        "what each head attends to",
    ),
    Form(r"(?<!\.)\bneeded (?:is|are)\b", "needs", "x is 1, needed is 2", "x is 1, needs 2"),
    Form(r"\blikeliest\(", "top_k", "likeliest(x, 3)", "the likeliest (of all) id"),
    Form(
        r"\bask_for\b|\b(?:asks?|asked|asking) for\b",
        "prefetch",
        "a tile asks for what comes next",
        "a tile prefetches what comes next",
        where="cpp/",
    ),
]


def text_of(file: Path) -> str:
    """What a file says, without line breaks, marks of comments and joints of strings."""
    text = file.read_text(encoding="utf-8")
    if file.suffix != ".md":
        text = re.sub(r'"\s*\n\s*r?f?"', "", text)
    return re.sub(r"[ \t]*\n\s*(?:(?:#|//|\*|>)[ \t]*)?", " ", text)


def said(form: Form, text: str) -> list[str]:
    return [
        text[max(0, found.start() - 40) : found.end() + 40]
        for found in re.finditer(form.pattern, text)
    ]


SOURCES = [
    file
    for folder in ("python", "notebooks", "cpp")
    for file in (ROOT / folder).rglob("*")
    if file.suffix in {".py", ".js", ".hpp", ".cpp"}
]
FILES = {str(file.relative_to(ROOT)): text_of(file) for file in [*PAGES, *SOURCES]}


@pytest.mark.parametrize("form", BANNED, ids=lambda form: form.say)
def test_a_form_is_found_and_what_is_near_is_not(form: Form) -> None:
    assert said(form, form.wrong)
    assert not said(form, form.right)


@pytest.mark.parametrize("form", BANNED, ids=lambda form: form.say)
def test_nobody_says_it(form: Form) -> None:
    found = [
        f"{file}: {words}"
        for file, text in FILES.items()
        if form.where in file
        for words in said(form, text)
    ]
    assert not found, "\n".join([f"say: {form.say}", *found])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_of_a_page_fit_120_columns(page: Path) -> None:
    """But for a row of a table, which cannot be broken; that is better a list."""
    lines = page.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if len(line) > 120 and not line.startswith("|")] == []
