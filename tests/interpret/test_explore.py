"""`sf.explore`: the widget in Python, and in JupyterLab with real clicks and keys."""

import importlib
import sys

import numpy as np
import pytest

import simdformer as sf
from browser import ActionChains, Keys
from conftest import same_bits
from lab import Lab
from simdformer.interpret.explorer import exploration
from simdformer.interpret.page.look import bundle

pytest.importorskip("anywidget", reason="needs the package anywidget")
from traitlets import TraitError

TEXT = "Mia has a red kite. Tom has a blue boat. What colour is the boat of Tom? It is"
SPOILT = TEXT.replace("blue", "green")
HEAD = {"part": "head", "layer": 5, "at": 0, "value": "zero"}
HOSTILE = "<img src=x onerror='window.broken=1'></script>"


# ---- in Python -----------------------------------------------------------------------------------


def received(explorer):
    """What the browser is sent, from now on."""
    messages = []
    explorer.send = lambda content, buffers=(): messages.append((content, buffers))
    return messages


def test_what_is_set_is_computed_at_once(demo):
    explorer = sf.explore(demo, TEXT, SPOILT)
    assert (explorer.layer, explorer.head, explorer.position) == (3, 0, 24)
    whole = explorer.trace
    explorer.edits = [HEAD]
    expected = demo.run_with_cache(TEXT, edit={"layers.5.attn.z": take_away})[1]
    assert np.array_equal(explorer.trace["logits"], expected["logits"])
    assert explorer.trace.tokens == expected.tokens
    assert not np.array_equal(explorer.trace["logits"], whole["logits"])
    explorer.text = "Mia has"
    assert (explorer.position, explorer.trace.tokens[-1]) == (2, " has")
    explorer.append(" a")
    assert (explorer.text, explorer.position) == ("Mia has a", 3)
    explorer.sample(temperature=0)
    assert explorer.text == "Mia has a" + demo.generate(
        "Mia has a", 1, edit={"*.5.attn.z": take_away}
    )
    assert explorer.edits == [HEAD]
    assert repr(explorer).endswith("head 5.0 → 0)")


def take_away(z):
    z[:, 0] = 0


def test_code_and_file_are_of_what_is_shown(demo, tmp_path):
    explorer = sf.explore(demo, TEXT)
    explorer.layer, explorer.head, explorer.position = 2, 1, -1
    code = explorer.code()
    assert repr(code) == str(code)
    assert "layer, head, position = 2, 1, 24" in code
    ran = {"model": demo}
    exec(code, ran)
    assert np.array_equal(ran["logits"], explorer.trace["logits"])
    file = explorer.save(tmp_path / "page.html")
    assert file.read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("layer", 6, "explore: layer is 6, needs 0 to 5"),
        ("head", 4, "explore: head is 4, needs 0 to 3"),
        ("position", 25, "explore: position is 25, needs 0 to 24"),
        ("text", "dog " * 300, "explore: text has 30. tokens, needs at most 200"),
        ("edits", [{"part": "hat"}], r"explore: edits\[0\] has part 'hat', needs one of"),
    ],
)
def test_what_makes_no_sense_changes_nothing(demo, name, value, message):
    explorer = sf.explore(demo, TEXT)
    before = getattr(explorer, name)
    with pytest.raises((ValueError, TraitError), match=message):
        setattr(explorer, name, value)
    assert getattr(explorer, name) == before
    explorer.edits = [HEAD]
    assert explorer.edits == [HEAD]


def test_only_what_has_changed_is_sent(demo):
    explorer = sf.explore(demo, TEXT)
    before = explorer._exploration.now
    messages = received(explorer)
    explorer.edits = [HEAD]
    [(told, [numbers, of_before])] = messages
    memory, places = bytearray(before.numbers), told["places"][0]
    for (begin, end), at in zip(
        places, np.cumsum([0, *(end - begin for begin, end in places)]), strict=False
    ):
        memory[begin:end] = numbers[at : at + end - begin]
    assert bytes(memory) == explorer._exploration.now.numbers
    assert (told["places"][1], of_before) == ([], b"")
    known = before.data["words"][: told["words"]["from"]] + told["words"]["more"]
    assert known == explorer._exploration.now.words.known
    assert len(numbers) < len(memory) / 2  # a head of the last of six layers
    assert told["changes"] == ["head 5.0 → 0"]
    messages.clear()
    explorer.edits = [HEAD]  # the same
    assert messages == []


def test_messages_of_the_browser_are_answered(demo):
    explorer = sf.explore(demo, TEXT, SPOILT)
    messages = received(explorer)

    def ask(**content):
        messages.clear()
        explorer._hear(explorer, content, [])
        explorer._worker.submit(lambda: None).result()  # behind it
        assert messages[0][0] == {"kind": "heard"}
        return [told for told, _ in messages[1:]]

    [page] = ask(do="open", view="mine")
    assert (page["kind"], page["view"], page["data"]["tokens"][-1]) == ("page", "mine", " is")
    [told] = ask(do="toggle", edit=HEAD)
    assert told["changes"] == ["head 5.0 → 0"]
    [told] = ask(do="toggle", edit=HEAD | {"value": "other"})
    assert told["changes"] == ["head 5.0 ← the second text"]
    [told] = ask(do="toggle", edit=HEAD | {"at": 1, "value": "mean"})
    assert len(told["changes"]) == 2
    [told] = ask(do="take back", at=0)
    assert told["changes"] == ["head 5.1 → its mean"]
    assert explorer.edits == [HEAD | {"at": 1, "value": "mean"}]
    [told] = ask(do="take back", at=None)
    assert told["changes"] == explorer.edits == []
    [told] = ask(do="compare", other="Mia")
    assert explorer.other == told["other"] == "Mia"
    [told] = ask(do="toggle", edit=HEAD | {"value": "other"})
    assert told["kind"] == "says"
    assert told["sentence"].startswith("other has 2 tokens, needs 25, as many as text, so that")
    [page] = ask(do="write", text="Mia has a red")
    assert page["data"]["tokens"][-1] == " red"
    best = page["data"]["next"]["words"]
    word = np.frombuffer(messages[1][1][0], best[0], best[2], best[1])[-5]
    [page] = ask(do="append", word=int(word))
    assert explorer.text == "Mia has a red" + demo.generate("Mia has a red", 1)
    [page] = ask(do="sample", temperature=1.0, seed=3)
    assert page["data"]["tokens"][:-1] == demo.tokenizer.to_str_tokens(explorer.trace.ids[:-1])
    assert ask(do="stop") == []  # nothing is computed, and what is asked for later is
    [page] = ask(do="write", text="A dog")
    assert page["data"]["tokens"][-1] == " dog"


def test_a_column_of_the_lens_is_sent_when_it_is_asked_for(demo, monkeypatch):
    monkeypatch.setattr(exploration, "CHEAP_LENS", 0)
    explorer = sf.explore(demo, TEXT)
    explorer.edits = [HEAD]
    explored, messages = explorer._exploration, received(explorer)
    old = explored.before, explored.now
    explorer._hear(explorer, {"do": "lens", "at": [3]}, [])
    explorer._worker.submit(lambda: None).result()
    [_, (told, pieces)] = messages
    now_and_before = (explored.now, explored.before)
    for places, piece, was, now in zip(
        told["places"], pieces, old[::-1], now_and_before, strict=True
    ):
        assert sum(end - begin for begin, end in places) == len(piece) > 0
        column = slice(3, None, 25)
        final = now.array(now.data["lens"]["final"])
        assert np.isnan(was.array(now.data["lens"]["final"])[column][:-1]).all()
        assert same_bits(final[column], now.lens.probability[:, 3])
    assert sum(map(len, pieces)) < 2000 * 2
    assert explored.now.lens.known[:, 3].all()
    assert not explored.now.lens.known[:-1, 4].any()


def test_it_says_what_to_install(demo, monkeypatch):
    monkeypatch.setitem(sys.modules, "anywidget", None)
    monkeypatch.delitem(sys.modules, "simdformer.interpret.explorer.widget")
    with pytest.raises(ImportError, match=r"explore: a widget needs the package anywidget .*; pip"):
        sf.explore(demo, TEXT)
    monkeypatch.undo()
    importlib.import_module("simdformer.interpret.explorer.widget")


def test_file_and_widget_have_the_same_views():
    file, notebook = bundle("file"), bundle("notebook")
    same = file.index("\nreturn page;")
    assert file[:same] == notebook[:same]


# ---- in JupyterLab -------------------------------------------------------------------------------

SETUP = f"""import time
import simdformer as sf
from simdformer.models import Transformer
model = sf.from_pretrained(sf.demo_path())
e = sf.explore(model, {TEXT!r})
e"""
STATE = "print(e.edits, e.layer, e.head, e.position, repr(e.text))"
CHECK = """ran = {"model": model}
exec(e.code(), ran)
print((ran["logits"] == e.trace["logits"]).all(), f'{ran["probabilities"].max():.3f}')"""
SLOW = """block = Transformer.block
def slow(*arguments):
    time.sleep(1)
    return block(*arguments)
Transformer.block = slow"""
SETTING = "Transformer.block = block\ne.layer, e.head, e.position = 1, 2, 3\ne.edits = []"
CELLS = (SETUP, STATE, CHECK, SLOW, SETTING)


def in_lab(test):
    return pytest.mark.slow(pytest.mark.xdist_group("browser")(test))


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    lab = Lab(tmp_path_factory.mktemp("lab"))
    lab.driver.set_window_size(1400, 1400)
    yield lab
    lab.close()


@pytest.fixture
def opened(lab, request):
    """A notebook, and the explorer in it."""
    notebook = lab.open(f"{request.node.name}.ipynb", *CELLS)
    notebook.run(0)
    notebook.wait(notebook.explorers)
    notebook.wait(lambda: notebook.explorers()[0].all("#heads button"))
    yield notebook, notebook.explorers()[0]
    severe = [one["message"] for one in lab.driver.get_log("browser") if one["level"] == "SEVERE"]
    assert [one for one in severe if "/lsp/status" not in one] == []


def tokens(view):
    return [span.get_property("textContent") for span in view.all("#text span")]


def chips(view):
    return [chip.text.removesuffix(" ×") for chip in view.all("#changes li")]


@in_lab
def test_clicks_change_and_take_back(opened, demo):
    notebook, view = opened
    view.click("input[name=does][value=zero]")
    view.click("#heads button", 20)
    view.wait(lambda: chips(view) == ["head 5.0 → 0"])
    assert notebook.run(2) == f"True {after(demo, take_away)[1]:.3f}"
    assert view.text("#next li code") == after(demo, take_away)[0].replace(" ", "␣")
    before = sf.softmax(demo(TEXT)[-1]).max()
    assert f"{100 * before:.0f} %" in view.all("#next .columns > div")[1].text

    view.click("input[name=does][value=mean]")
    view.click("#by-layer .bar", 4)  # the MLP of layer 1
    view.wait(lambda: len(chips(view)) == 2)
    view.click("#text span", 3)
    view.wait(lambda: len(chips(view)) == 3)
    assert chips(view)[1:] == [
        "MLP of layer 1 → its mean",
        "token 3 ' a' before layer 0 → its mean",
    ]
    assert notebook.run(2).startswith("True")
    view.click("#changes li button", 1)
    view.wait(lambda: len(chips(view)) == 2)

    view.write("#other", SPOILT)
    view.click("input[name=does][value=other]")
    view.click("#by-head .bar", 2)
    view.wait(lambda: "← the second text" in view.text("#changes"))
    assert notebook.run(2).startswith("True")
    view.click("#changes > button")
    view.wait(lambda: chips(view) == [])
    assert "[]" in notebook.run(1)


def after(demo, change):
    """The word that is most probable then, and its probability."""
    shares = sf.softmax(demo(TEXT, edit={"layers.5.attn.z": change})[-1])
    return demo.tokenizer.to_str_tokens([shares.argmax()])[0], shares.max()


@in_lab
def test_typing_is_read_and_goes_on(opened, demo):
    notebook, view = opened
    text = f"A dog bdd xx 00 {HOSTILE} and"  # letters that are commands to JupyterLab
    view.write("#typed", text)
    view.wait(lambda: "".join(tokens(view)[1:]) == text)
    assert len(notebook.cells) == len(CELLS)
    assert notebook.driver.execute_script("return window.broken") is None
    view.write("#typed", "Mia has a red")
    view.wait(lambda: tokens(view)[-1] == " red")
    view.click("#next li button")
    view.wait(lambda: len(tokens(view)) == 6)
    assert tokens(view)[-1] == demo.generate("Mia has a red", 1)
    view.click("#sample")
    view.wait(lambda: len(tokens(view)) == 7)
    assert view.one("#typed").get_property("value") == "".join(tokens(view)[1:])
    view.write("#typed", "dog " * 250)
    view.wait(lambda: "text has 253 tokens, needs at most 200; shorten it" in view.text("#says"))
    view.write("#typed", "Mia")
    view.wait(lambda: tokens(view)[1:] == ["Mia"])


@in_lab
def test_a_token_is_edited_in_its_place(opened):
    notebook, view = opened
    at = tokens(view).index(" blue")

    def type_into(text, end):
        view.wait(lambda: view.all("#text textarea"))
        notebook.press(Keys.CONTROL, "a")
        ActionChains(notebook.driver).send_keys(text, end).perform()

    view.click("#text span", at)
    assert view.all("#text textarea") == []  # the first click chooses
    view.click("#text span", at)
    type_into(" green", Keys.ENTER)
    view.wait(lambda: tokens(view)[at] == " green")
    assert view.one("#typed").get_property("value") == SPOILT
    assert f" {at} {SPOILT!r}" in notebook.run(1)
    assert "␣green" in view.text("#lens-words")
    view.click("#text span", at)
    type_into(" red", Keys.ESCAPE)
    assert tokens(view)[at] == " green"
    notebook.press(Keys.ARROW_LEFT)  # the text has the focus again
    notebook.press(Keys.ENTER)
    type_into(HOSTILE, Keys.ENTER)
    view.wait(lambda: HOSTILE in "".join(tokens(view)))
    assert notebook.driver.execute_script("return window.broken") is None
    view.click("input[name=does][value=zero]")
    view.click("#text span", at - 1)  # is chosen, and a click changes it now
    view.wait(lambda: len(chips(view)) == 1)
    assert view.all("#text textarea") == []


@in_lab
def test_a_lens_that_costs_much_is_computed_where_one_looks(opened, demo):
    notebook, view = opened
    notebook.type(
        1,
        "from simdformer.interpret.explorer import exploration\n"
        "exploration.CHEAP_LENS = 0\ne.text = 'Mia has a red'",
    )
    notebook.run(1)
    view.wait(lambda: tokens(view)[-1] == " red")
    view.click("#lens")  # in the middle: the third of five tokens
    view.wait(lambda: "the final word" in view.text("#lens-words"))
    lens = sf.logit_lens(demo, "Mia has a red")
    row = lens.layers.index(int(view.one("#layer").get_property("value")))
    words = [word.text for word in view.all("#lens-words li code")]
    assert words == [word.replace(" ", "␣") for word in lens.words[row][2]]
    assert view.one("#lens-all").is_displayed()
    view.click("#text span", 1)
    view.wait(lambda: "behind Mia: the final word" in view.text("#lens-words"))
    view.click("#lens-all")
    view.wait(lambda: not view.one("#lens-all").is_displayed())


@in_lab
def test_python_and_keys_choose(opened):
    notebook, view = opened
    view.click("#one-head canvas")
    for key in (Keys.ARROW_UP, Keys.ARROW_DOWN, Keys.ARROW_DOWN, "["):
        notebook.press(key)
    chosen = view.one("#layer").get_property("value"), view.one("#head").get_property("value")
    assert chosen == ("2", "0")
    assert " 2 0 " in notebook.run(1)
    notebook.run(3)
    notebook.run(4)
    view.wait(lambda: view.text("#head-title") == "Layer 1, head 2")
    assert view.one("#token").get_property("value") == "3"


@in_lab
def test_what_takes_long_shows_a_bar_and_is_stopped(opened):
    notebook, view = opened
    notebook.run(3)
    view.write("#typed", "A dog")
    view.wait(lambda: view.one("#busy").is_displayed())
    assert view.text("#doing") == "explore: reading"
    view.click("#stop")
    view.wait(lambda: view.text("#says") == "stopped: shown is what was there before")
    assert not view.one("#busy").is_displayed()
    assert tokens(view)[-1] == " is"
    assert repr(TEXT) in notebook.run(1)


@in_lab
def test_two_explorers_and_a_restart(opened):
    notebook, view = opened
    other = "f = sf.explore(model, 'Mia has a red')\nf"
    notebook.type(1, other)
    notebook.run(1)
    notebook.wait(
        lambda: len(notebook.explorers()) == 2 and notebook.explorers()[1].all("#heads button")
    )
    first, second = notebook.explorers()
    second.click("input[name=does][value=zero]")
    second.click("#heads button", 3)
    second.wait(lambda: chips(second) == ["head 0.3 → 0"])
    assert chips(first) == []
    assert (len(tokens(first)), len(tokens(second))) == (25, 5)
    notebook.restart()
    for view in (first, second):
        view.wait(lambda view=view: "After a restart, run the cell again" in view.text("#says"))


@in_lab
def test_dark_and_400_pixels(opened, lab):
    _, view = opened
    light = view.one("section").value_of_css_property("background-color")
    lab.driver.execute_script("document.body.dataset.jpThemeLight = 'false'")
    view.wait(lambda: view.one("section").value_of_css_property("background-color") != light)
    lab.driver.execute_script(
        "const host = document.querySelector('.simdformer-explorer');"
        "host.style.width = '400px'; host.scrollIntoView()"
    )
    wide = "return arguments[0].scrollWidth - arguments[0].clientWidth"
    assert lab.driver.execute_script(wide, view.one("#page")) == 0
    assert view.one("main").value_of_css_property("grid-template-columns").count("px") == 1


TRAINED = """import os, time
import simdformer as sf
from simdformer.training import TrainableModel
model = TrainableModel.from_pretrained(sf.demo_path())
e = sf.explore(model, [1, 40, 7, 300, 40, 7])
e"""
LOOP = """log = []
for step in range(1, 41):
    loss, gradients = model.loss_and_gradients(e.trace.ids)
    for name, weight in model.parameters().items():
        weight -= 0.01 * gradients[name]
    log.append(loss)
    e.update(log)
    time.sleep(0.1)
    while step == 39 and not os.path.exists("seen"):
        time.sleep(0.1)
print(f"{log[-1]:.3g}", f"{model.loss(e.trace.ids):.3f}")"""


@in_lab
def test_the_curve_of_a_run_grows_while_it_goes_on(lab):
    notebook = lab.open("run.ipynb", TRAINED, LOOP)
    notebook.run(0)
    notebook.wait(notebook.explorers)
    view = notebook.explorers()[0]
    view.wait(lambda: view.all("#heads button"))
    assert not view.one("#run-view").is_displayed()
    notebook.start(1)
    view.wait(lambda: view.text("#run-of").startswith("After step "))
    assert notebook.count(1) is None  # the loop goes on, until it is told
    (lab.folder / "seen").touch()
    last, now = notebook.finish(1).split()
    view.wait(lambda: view.text("#run-of") == f"After step 40: loss {last}.")
    assert f"is {now} nats" in view.text("#loss-of")
    view.wait(lambda: len(view.one("#run-curve .each").get_attribute("points").split()) == 40)


@in_lab
def test_it_answers_in_notebook_7(tmp_path):
    lab = Lab(tmp_path, "notebook")
    try:
        notebook = lab.open("seven.ipynb", *CELLS)
        notebook.run(0)
        notebook.wait(notebook.explorers)
        view = notebook.explorers()[0]
        view.wait(lambda: view.all("#heads button"))
        view.click("input[name=does][value=zero]")
        view.click("#heads button", 20)
        view.wait(lambda: chips(view) == ["head 5.0 → 0"])
        assert notebook.run(2).startswith("True")
        view.write("#typed", "A dog bdd xx 00")  # letters that are commands to a notebook
        view.wait(lambda: "".join(tokens(view)[1:]) == "A dog bdd xx 00")
        assert len(notebook.cells) == len(CELLS)
    finally:
        lab.close()
