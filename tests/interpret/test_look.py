"""What `sf.look` gives in Python: the page, its limits, the command."""

import html
import io
import json
import re

import pytest

import simdformer as sf
from simdformer.interpret import Page
from subjects import IDS, make

TEXT = "Mia has a red kite."


def told(page):
    [data] = re.findall(r'<script id="data" type="application/json">(.*)</script>', page.html)
    return json.loads(data)


def test_a_page_is_one_file_that_asks_for_nothing(demo, tmp_path):
    page = sf.look(demo, TEXT)
    file = page.save(tmp_path / "look.html")
    assert file.read_text(encoding="utf-8") == page.html
    assert repr(page).startswith("Page(6 layers of 4 heads, 7 tokens, 0.")
    assert "default-src 'none'" in page.html
    assert not re.search(r"https?://(?!www\.w3\.org/)|@import|url\(|src=", page.html)
    assert not re.search(r"/\*(DATA|STYLE|SCRIPT)\*/", page.html)


def test_a_notebook_shows_it_in_a_frame(demo):
    page = sf.look(demo, TEXT)
    frame = page._repr_html_()
    assert isinstance(page, Page)
    assert '</p><iframe srcdoc="' in frame
    assert 'sandbox="allow-scripts"' in frame
    [content] = re.findall(r'srcdoc="([^"]*)"', frame)
    assert html.unescape(content) == page.html


def test_text_that_is_too_long_is_refused_or_cut(demo):
    long = "Once upon a time there was a dog. " * 30
    count = len(demo.tokenizer.encode(long))
    assert count > 200
    with pytest.raises(ValueError, match=f"look: the text has {count} tokens, needs at most 200"):
        sf.look(demo, long)
    page = sf.look(demo, long, max_tokens=20, cut=True)
    assert page.about == f"6 layers of 4 heads, 20 tokens; the first 20 of {count} tokens"
    assert told(page)["about"].startswith(page.about)
    assert told(page)["tokens"] == demo.tokenizer.to_str_tokens(long)[:20]
    with pytest.raises(ValueError, match="look: max_tokens is 0"):
        sf.look(demo, TEXT, max_tokens=0)


def test_ids_are_shown_without_a_tokenizer():
    model, _ = make()
    page = sf.look(model, IDS, target=9, against=200)
    assert told(page)["tokens"] == [str(id) for id in IDS]
    assert told(page)["attribution"]["target"] == "9"
    with pytest.raises(ValueError, match="look: text needs a tokenizer, and this model has none"):
        sf.look(model, "text")
    with pytest.raises(TypeError, match=r"look: text is .*, needs one text, or its ids"):
        sf.look(model, [IDS, IDS])


def test_words_are_as_the_model_says_them(demo):
    page = told(sf.look(demo, TEXT, against=" blue"))
    assert page["attribution"]["target"] is None
    assert page["attribution"]["against"] == " blue"
    assert page["title"] == TEXT
    assert page["heads"] == 4
    assert page["scores"]["entropy"][-1] == 6 * 4


# ---- the command ---------------------------------------------------------------------------------


def test_look_writes_a_page(command, demo, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    file = tmp_path / "some page.html"
    status, out, err = command(
        "look", "demo", TEXT, "--out", file, "--target", " red", "--against", " blue", "--open"
    )
    assert (status, out) == (0, "")
    assert re.fullmatch(
        re.escape(f"{file}: 6 layers of 4 heads, 7 tokens, ") + r"\d+\.\d KiB\n", err
    )
    assert (
        file.read_text(encoding="utf-8") == sf.look(demo, TEXT, target=" red", against=" blue").html
    )
    assert opened == [file.resolve().as_uri()]


def test_look_cuts_where_it_is_asked_to(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, _, err = command("look", "demo", TEXT, "--max-tokens", 3)
    assert status == 0
    assert err.startswith("look.html: 6 layers of 4 heads, 3 tokens; the first 3 of 7 tokens, ")


def test_look_overwrites_nothing_without_being_told_to(command, tmp_path, monkeypatch):
    file = tmp_path / "page.html"
    file.write_text("mine")
    status, _, err = command("look", "demo", TEXT, "--out", file)
    assert status == 2
    assert f"{file}: there is such a file already; --yes writes over it, --out writes" in err

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    for answer, stays in (("\n", True), ("n\n", True), ("y\n", False)):
        monkeypatch.setattr("sys.stdin", Terminal(answer))
        status, _, err = command("look", "demo", TEXT, "--out", file)
        assert f"{file} is there already. Write over it? [y/N] " in err
        assert (status, file.read_text() == "mine") == (int(stays), stays)
    file.write_text("mine")
    assert command("look", "demo", TEXT, "--out", file, "--yes")[0] == 0
    assert file.read_text().startswith("<!doctype html>")


def test_look_refuses_in_one_line(command, tiny, tmp_path):
    for arguments, message in (
        (("demo", TEXT, "--out", tmp_path), "this is a directory"),
        (("demo", TEXT, "--target", "Mia has"), "look: target 'Mia has' is 2 tokens"),
        (("demo", TEXT, "--max-tokens", "0"), "a whole number >= 1"),
        ((tmp_path / "nothing", TEXT), "nothing"),
    ):
        status, out, err = command("look", *arguments)
        assert (status, out) == (2, "")
        assert message in err
