"""The page of `sf.look` in headless Chromium."""

import re

import numpy as np
import pytest

import simdformer as sf
from browser import Keys, Tab, start
from checkpoints import random_model
from simdformer.interpret.explorer.curves import curves
from simdformer.interpret.explorer.exploration import Exploration
from simdformer.interpret.loss import loss_by_part
from simdformer.interpret.page.content import read_text
from simdformer.interpret.page.look import Page, page_of
from simdformer.interpret.subject import read_subject
from simdformer.training import TrainableModel

TEXT = "Mia has a red kite. Tom has a blue boat. What colour is the boat of Tom? It is"
HOSTILE = [
    "</script><script>window.broken = 1</script>",
    '<img src="x" onerror="window.broken = 2">',
    "<!--<script>",
    "]]>\u2028\u2029",
    "\u05e9\u05dc\u05d5\u05dd\u202e",
    "${window.broken = 3}`\\",
    "&lt;b&gt;",
    "\0\x07\ud7ff\ufffe",
    "",
    "/*DATA*/",
]

pytestmark = pytest.mark.xdist_group("browser")


@pytest.fixture(scope="module")
def driver():
    driver = start()
    yield driver
    driver.quit()


@pytest.fixture
def opened(driver, tmp_path):
    """opened(page): in the browser; at the end it must not have complained."""
    tabs = []

    def open_it(page):
        tabs.append(Tab(driver, page.save(tmp_path / "look.html")))
        return tabs[-1]

    yield open_it
    complaints = [one for tab in tabs for one in tab.complaints()]
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert complaints == []


@pytest.fixture
def tab(opened, demo):
    return opened(sf.look(demo, TEXT, target=" blue", against=" red"))


@pytest.fixture(scope="module")
def trace(demo):
    return demo.run_with_cache(TEXT)[1]


def label(text):
    return text.replace(" ", "␣")


# ---- every view draws ----------------------------------------------------------------------------


def test_every_view_draws(tab, demo, trace):
    assert tab.text("h1").startswith("Mia has a red kite.")
    assert tab.text("#about") == "6 layers of 4 heads, 25 tokens; patterns are kept in 8 bits"
    assert [span.get_property("textContent") for span in tab.all("#text span")] == trace.tokens
    assert len(tab.all("#heads canvas")) == 24
    for canvas in ("#heads canvas", "#one-head canvas", "#lens"):
        assert tab.ink(canvas) > 10
    assert tab.text("#lens-rows").split("\n") == [
        *(f"layer {layer}" for layer in range(5, -1, -1)),
        "embedding",
    ]
    assert len(tab.all("#by-layer .bar")) == 13
    assert len(tab.all("#by-head .bar")) == 4
    boxes = [box.text.split("\n") for box in tab.all("#flow g[role=button]")]
    assert dict(boxes) == {
        name: " × ".join(map(str, array.shape)) for name, array in trace[0].items()
    }


def test_numbers_are_those_of_the_model(tab, demo, trace):
    logits = demo(TEXT)
    best = sf.softmax(logits[-1]).argsort()[::-1][:5]
    told = [line.text for line in tab.all("#next li code")]
    assert told == [label(demo.tokenizer.to_str_tokens([id])[0]) for id in best]
    found = sf.attribute(demo, TEXT, " blue", " red")
    assert f"in all {found.difference:.2f}." in tab.text("#attribution-of")
    assert "“␣blue” against “␣red”" in tab.text("#attribution-of")
    heads = [bar.text.replace("−", "-") for bar in tab.all("#by-head .bar b")]
    layer, _ = tab.state("layer", "head")
    assert heads == [f"{n:+.2f}" for n in found.heads[layer]]
    layers = [bar.text.replace("−", "-") for bar in tab.all("#by-layer .bar b")]
    expected = [found.embed, *np.stack([found.heads.sum(1), found.mlps], axis=1).ravel()]
    np.testing.assert_allclose(np.array(layers, float), expected, atol=0.0051)
    scores = sf.head_scores(trace)["previous_token"]
    assert [float(one.text) for one in tab.all("#heads span")] == [
        pytest.approx(n, abs=0.006) for n in scores.ravel()
    ]
    rms = np.sqrt(np.mean(trace["resid_post", layer][-1].astype(float) ** 2))
    assert f"root mean square {rms:.3g}" in tab.text("#numbers")


# ---- views are linked ----------------------------------------------------------------------------


def attended_to(tab):
    return re.findall(r"\((\d+)\) (\d+(?:\.\d)?) %", tab.text("#share"))


def test_the_pointer_on_a_token_shows_what_it_attends_to(tab, trace):
    layer, head = tab.state("layer", "head")
    spans = tab.all("#text span")
    for query in (11, 17, 24):
        tab.point(spans[query])
        assert tab.text("#next").startswith(f"token {query} {label(trace.tokens[query])}:")
        pattern = trace["pattern", layer][head, query]
        keys = pattern.argsort()[::-1][:4]
        told = attended_to(tab)
        assert int(told[0][0]) == keys[0]
        for key, percent in told:
            assert float(percent) == pytest.approx(100 * pattern[int(key)], abs=0.6)
        shown = [span.value_of_css_property("background-color") for span in spans]
        light = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in shown]
        assert np.argmin(light) == keys[0]
        assert tab.state("token") == (24,)
    tab.point(tab.one("h1"))
    assert tab.state("under", "token") == (None, 24)


def test_a_click_on_a_token_is_kept_in_every_view(tab, trace):
    tab.click(tab.all("#text span")[5])
    tab.point(tab.one("h1"))
    assert tab.state("token", "under") == (5, None)
    assert "Behind token 5, ␣kite" in tab.text("#attribution-of")
    assert "of token 5, ␣kite" in tab.text("#numbers")
    assert "behind ␣kite" in tab.text("#lens-words")
    assert "␣kite (5) attends to" in tab.text("#share")
    assert tab.one("#token").get_property("value") == "5"
    assert [span.text for span in tab.all("#text span.here")] == [" kite"]


def test_a_click_on_a_thumbnail_chooses_its_head(tab):
    tab.click(tab.one("button[aria-label='layer 2, head 1']"))
    assert tab.text("#head-title") == "Layer 2, head 1"
    assert tab.text("#layer-title") == "Layer 2"
    here = [bar.text.split("\n")[0] for bar in tab.all(".bar.here")]
    assert here == ["layer 2 heads", "layer 2 MLP", "head 2.1"]
    assert "After layer 2" in tab.text("#lens-words")
    assert tab.one("#head").get_property("value") == "1"


def test_a_click_on_a_bar_chooses_too(tab):
    tab.click(tab.all("#by-layer .bar")[4])
    assert tab.state("layer") == (1,)
    tab.click(tab.all("#by-head .bar")[3])
    assert tab.state("layer", "head") == (1, 3)
    assert tab.text("#head-title") == "Layer 1, head 3"


def test_a_click_on_the_lens_shows_the_ten_likeliest(tab, demo):
    lens = tab.one("#lens")
    tab.driver.execute_script("arguments[0].parentElement.scrollLeft = 0", lens)
    column = lens.size["width"] / 25
    tab.click(lens, 3.5 * column, 4.5 * 20)  # the fifth row from above: layer 1
    assert tab.state("token", "layer", "lensRow") == (3, 1, 2)
    ids = sf.logit_lens(demo, TEXT).ids[2, 3]
    words = [line.text for line in tab.all("#lens-words li code")]
    assert words == [label(word) for word in demo.tokenizer.to_str_tokens(ids)]
    tab.click(lens, 3.5 * column, 6.5 * 20)  # the embedding is no layer
    assert tab.state("layer", "lensRow") == (1, 0)
    assert "After embedding" in tab.text("#lens-words")


def test_a_click_on_a_box_shows_its_numbers(tab, trace):
    tab.click(tab.one("#flow g[data-name='attn.z']"))
    layer, token = tab.state("layer", "token")
    assert tab.text("#numbers").startswith("attn.z of token 24")
    first = trace["z", layer][token].ravel()[:8]
    shown = [float(n) for n in tab.text("#numbers code.wraps").split()]
    np.testing.assert_allclose(shown, first, rtol=1e-2)


def test_the_large_pattern_follows_the_pointer(tab, trace):
    picture = tab.one("#one-head canvas")
    cell = (picture.size["width"] - 110 - 20) / 25
    tab.point(picture, 110 + 11.5 * cell, 110 + 17.5 * cell)
    assert tab.state("under", "key") == (17, 11)
    layer, head = tab.state("layer", "head")
    share = 100 * trace["pattern", layer][head, 17, 11]
    [(key, percent)] = attended_to(tab)
    assert (int(key), float(percent)) == (11, pytest.approx(share, abs=0.6))
    tab.click(picture, 110 + 2.5 * cell, 110 + 9.5 * cell)
    assert tab.state("token") == (9,)


def test_lines_are_drawn_between_queries_and_keys(tab, trace):
    tab.click(tab.one("input[value=lines]"))
    layer, head = tab.state("layer", "head")
    pattern = np.rint(255 * trace["pattern", layer][head]) / 255
    assert len(tab.all("#one-head line")) == (pattern >= 0.04).sum()
    words = tab.all("#one-head text")
    tab.point(words[2 + 2 * 24])  # a query, behind the two heads of the columns
    assert len(tab.all("#one-head line")) == (pattern[24] >= 0.04).sum()
    tab.click(tab.one("input[value=shading]"))
    assert len(tab.all("#one-head canvas")) == 1


def test_tokens_are_coloured_by_probability_and_loss(tab):
    def shades():
        return [span.value_of_css_property("background-color") for span in tab.all("#text span")]

    attends = shades()
    tab.click(tab.one("input[value=probability]"))
    probability = shades()
    tab.click(tab.one("input[name=colour][value=loss]"))
    loss = shades()
    assert len({*map(tuple, (attends, probability, loss))}) == 3
    assert loss[0] == probability[0]  # nothing predicts the first


def test_both_columns_of_attribution_have_one_scale_and_an_axis(tab):
    def drawn(column):
        bars = [bar.text.split("\n")[-1] for bar in tab.all(f"#{column} .bar")]
        lines = f"[...document.querySelectorAll('#{column} .bar i')]"
        widths = tab(f"{lines}.map((line) => parseFloat(line.style.getPropertyValue('--wide')))")
        return [abs(float(bar.replace("−", "-"))) for bar in bars], widths

    for layer in (5, 0):
        tab(f"page.choose({{layer: {layer}}})")
        numbers, widths = map(np.concatenate, zip(drawn("by-layer"), drawn("by-head"), strict=True))
        assert widths.max() == pytest.approx(50)
        scale = widths.max() / numbers.max()
        np.testing.assert_allclose(widths, numbers * scale, atol=0.3)
        ends = [one.text for one in tab.all("#attribution-view .axis s")]
        assert ends == [f"−{numbers.max():.2f}", "0", f"+{numbers.max():.2f}"] * 2


def test_every_view_shows_the_token_under_the_pointer(tab):
    spans = tab.all("#text span")
    tab.point(spans[5])
    assert "Behind token 5, ␣kite" in tab.text("#attribution-of")
    assert "of token 5, ␣kite" in tab.text("#numbers")
    assert "behind ␣kite" in tab.text("#lens-words")
    assert "␣kite (5) attends to" in tab.text("#share")
    tab.point(tab.one("h1"))
    assert "Behind token 24" in tab.text("#attribution-of")
    assert "of token 24" in tab.text("#numbers")


def test_every_colour_has_a_legend(tab):
    told = [legend.text for legend in tab.all(".legend")]
    assert told.count("0 %\n100 % (shade: the square root)") == 4
    assert "raises the logit\nlowers it" in told
    tab.click(tab.one("input[value=probability]"))
    assert tab.text("#text-view .legend") == "0 %\n100 %"
    tab.click(tab.one("input[name=colour][value=loss]"))
    assert tab.text("#text-view .legend") == "loss 0\n10"


def test_the_lens_begins_at_the_first_token_and_follows_the_chosen_one(tab):
    assert tab("document.getElementById('lens').parentElement.scrollLeft") == 0
    tab.press(Keys.ARROW_LEFT)
    assert tab("document.getElementById('lens').parentElement.scrollLeft") > 0


def test_thumbnails_grow_with_the_room(tab):
    def side(width):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        tab.emulate("setDeviceMetricsOverride", **size)
        return tab.one("#heads canvas").size["width"]

    assert 45 < side(360) < side(600)


def test_scores_can_be_chosen(tab, trace):
    tab.one("#score").send_keys("entropy")
    assert tab.state("score") == ("entropy",)
    scores = sf.head_scores(trace)["entropy"].ravel()
    told = [float(one.text) for one in tab.all("#heads span")]
    np.testing.assert_allclose(told, scores, atol=0.006)
    assert "in bits" in tab.text("#score-means")


# ---- keys, colours, sizes ------------------------------------------------------------------------


def test_the_keyboard_moves_through_tokens_layers_and_heads(tab):
    tab.click(tab.one("h1"))
    layer, head = tab.state("layer", "head")
    tab.press(Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    assert tab.state("token") == (22,)
    tab.press(Keys.ARROW_RIGHT)
    assert tab.state("token") == (23,)
    tab.press(Keys.ARROW_DOWN)
    assert tab.state("layer") == (layer - 1,)
    tab.press(Keys.ARROW_UP, Keys.ARROW_UP, Keys.ARROW_UP)
    assert tab.state("layer") == (5,)  # the last one
    tab.press("]")
    assert tab.state("head") == (min(head + 1, 3),)
    tab.press(*"[[[[[")
    assert tab.state("head") == (0,)
    tab.press(Keys.ESCAPE)
    assert tab.state("token") == (24,)


def test_fields_take_numbers_and_keep_their_keys(tab):
    field = tab.one("#token")
    field.send_keys(Keys.CONTROL + "a" + Keys.NULL + "7" + Keys.ENTER)
    assert tab.state("token") == (7,)
    before = tab.state("head", "layer")
    tab.press("]", "t", Keys.ARROW_LEFT)
    assert tab.state("head", "layer") == before
    assert tab("document.documentElement.dataset.theme") == "light"
    field.send_keys(Keys.CONTROL + "a" + Keys.NULL + "999" + Keys.ENTER)
    assert tab.state("token") == (24,)
    assert field.get_property("value") == "24"


def test_boxes_are_reached_and_opened_by_keys(tab):
    tab.driver.execute_script("document.querySelector(\"#flow g[data-name='mlp.act']\").focus()")
    tab.press(Keys.ENTER)
    assert tab.text("#numbers").startswith("mlp.act of token")
    tab.press(Keys.TAB, " ")
    assert tab.text("#numbers").startswith("mlp.out of token")


def test_help_lists_the_keys(tab):
    tab.click(tab.one("h1"))
    tab.press("?")
    assert tab("document.getElementById('keys').open")
    assert "the token before" in tab.text("#keys")
    tab.press(Keys.ARROW_LEFT)
    assert tab.state("token") == (24,)  # not while help is read
    tab.press(Keys.ESCAPE)
    assert not tab("document.getElementById('keys').open")


def test_dark_and_light_follow_the_system_and_the_button(tab):
    def background():
        return tab.one("body").value_of_css_property("background-color")

    light = background()
    tab.click(tab.one("#theme"))
    dark = background()
    assert light != dark
    tab.press("t")
    assert background() == light
    feature = {"name": "prefers-color-scheme", "value": "dark"}
    tab.emulate("setEmulatedMedia", features=[feature])
    tab.wait_for("document.documentElement.dataset.theme === 'dark'")
    assert background() == dark
    assert tab.ink("#lens") > 10


@pytest.mark.parametrize("width", [360, 800, 2200])
def test_a_page_fits_its_window(tab, width):
    tab.emulate(
        "setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
    )
    assert tab("document.scrollingElement.scrollWidth") <= width
    columns = len({section.rect["x"] for section in tab.all("section:not([hidden])")})
    assert columns == (1 if width < 860 else 2)


# ---- what a text may hold ------------------------------------------------------------------------


class Hostile:
    """A tokenizer whose every token would rather be markup."""

    bos_id, eos_ids, vocab_size = None, (), 300

    def to_str_tokens(self, ids):
        return [HOSTILE[id % len(HOSTILE)] for id in ids]

    def decode(self, ids, skip_special=False):
        return "".join(self.to_str_tokens(ids))


def test_hostile_text_stays_text(opened):
    model = sf.LanguageModel(random_model()[0], Hostile())
    tab = opened(sf.look(model, list(range(len(HOSTILE)))))
    assert tab("window.broken === undefined")
    shown = [span.get_property("textContent") for span in tab.all("#text span")]
    assert shown == [text or "∅" for text in HOSTILE]
    places = [span.rect["x"] for span in tab.all("#text span")[5:]]
    assert places == sorted(places)  # what turns the direction turns its own token alone
    assert tab("document.scrollingElement.scrollWidth") <= 1400
    for at in range(len(HOSTILE)):
        tab.click(tab.all("#text span")[at] if at < 8 else tab.one("h1"))
    tab.click(tab.one("input[value=lines]"))
    tab.click(tab.one("#flow g[data-name='attn.z']"))
    assert tab("window.broken === undefined")
    assert tab("document.querySelectorAll('img, main script, b:not(.bar b)').length") == 0


@pytest.mark.parametrize("text", ["你好,世界。שלום", "Why did\n\tthe chicken?\n\n\nTo get…", "a"])
def test_any_text_can_be_looked_at(opened, demo, text):
    tab = opened(sf.look(demo, text))
    tokens = demo.tokenizer.to_str_tokens(text)
    assert [span.get_property("textContent") for span in tab.all("#text span")] == tokens
    tab.click(tab.all("#text span")[0])
    tab.press(Keys.ARROW_RIGHT, Keys.ARROW_UP)
    assert "." not in tab.text("h1") or text.split()[0] in tab.text("h1")


def test_layers_with_experts_and_without_have_pictures_of_their_own(opened):
    experts = {"num_experts": 5, "num_experts_per_tok": 2, "expert_intermediate_size": 8}
    experts |= {"expert_layers": (False, True, False), "shared_intermediate_size": 12}
    model, _ = random_model(**experts, shared_router=True)
    _, trace = model.run_with_cache([3, 1, 4, 1, 5])
    tab = opened(sf.look(model, [3, 1, 4, 1, 5]))
    for layer in (0, 1, 2):
        tab(f"page.choose({{layer: {layer}}})")
        boxes = [box.text.split("\n") for box in tab.all("#flow g[role=button]")]
        assert dict(boxes) == {
            name: " × ".join(map(str, array.shape)) for name, array in trace[layer].items()
        }
        if layer == 1:
            tab("page.choose({activation: 'mlp.experts'})")
            assert f"{trace[1]['mlp.experts'][-1, 0]:.2f}" in tab.text("#numbers")
    assert tab.state("activation") == ("resid_post",)  # no experts here


def test_one_token_of_a_model_without_a_tokenizer(opened):
    model, _ = random_model(num_layers=1, num_heads=1, num_kv_heads=1, qk_norm=True, vocab_size=3)
    tab = opened(sf.look(model, [2]))
    assert [span.text for span in tab.all("#text span")] == ["2"]
    assert {"attn.q_normed", "attn.k_normed"} <= {
        box.get_dom_attribute("data-name") for box in tab.all("#flow g[role=button]")
    }
    assert len(tab.all("#next li")) == 3


def test_without_javascript_there_is_a_sentence(demo, tmp_path):
    file = sf.look(demo, "Mia").save(tmp_path / "look.html")
    driver = start(javascript=False)
    try:
        driver.get(file.as_uri())
        sentence = driver.find_element("css selector", "noscript")
        assert sentence.get_property("textContent").endswith("and nothing from the network.")
        assert sentence.rect["height"] > 10
        assert not driver.find_element("css selector", "main").is_displayed()
    finally:
        driver.quit()


def test_a_notebook_draws_it_in_its_frame(driver, demo, tmp_path):
    file = tmp_path / "notebook.html"
    file.write_text(sf.look(demo, "Mia has")._repr_html_(), encoding="utf-8")
    driver.get(file.as_uri())
    driver.switch_to.frame(driver.find_element("css selector", "iframe"))
    canvas = driver.find_element("css selector", "#one-head canvas")
    assert canvas.size["width"] > 100
    assert driver.find_element("css selector", "h1").text == "Mia has"


def test_a_notebook_that_is_not_trusted_shows_a_line(demo):
    """It drops the frame and keeps paragraphs."""
    shown = re.sub("<iframe.*</iframe>", "", sf.look(demo, "Mia has")._repr_html_(), flags=re.S)
    assert shown.startswith("<p>6 layers of 4 heads, 3 tokens: the page is below, in a notebook")


def test_a_browser_that_is_too_old_is_told(driver, demo, tmp_path):
    file = sf.look(demo, "Mia").save(tmp_path / "look.html")
    command = driver.execute_cdp_cmd(
        "Page.addScriptToEvaluateOnNewDocument", {"source": "delete window.DecompressionStream"}
    )
    driver.get(file.as_uri())
    driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", command)
    assert "needs a browser of 2023" in driver.find_element("css selector", "body").text


@pytest.mark.slow
def test_a_large_model_and_a_long_text_have_room(opened):
    model, _ = random_model(num_layers=28, num_heads=16, num_kv_heads=8, max_seq_len=256)
    page = sf.look(model, np.random.default_rng(4).integers(0, 300, 200))
    assert len(page.html) < 12_000_000
    tab = opened(page)
    assert len(tab.all("#heads canvas")) == 28 * 16
    below = "button[aria-label='layer 20, head 15']"
    assert tab.one(f"{below} canvas").get_property("width") == 300  # as it is before it is seen
    tab.click(tab.one(below))
    assert tab.text("#head-title") == "Layer 20, head 15"
    assert tab.ink(f"{below} canvas") > 10
    tab.press("t")  # in other colours it is drawn anew
    tab.wait_for("document.documentElement.dataset.theme === 'dark'")
    assert tab.ink("button[aria-label='layer 20, head 14'] canvas") > 10


# ---- beside what it was before -------------------------------------------------------------------


def test_now_stands_beside_before(opened, demo):
    explored = Exploration(demo, TEXT)
    explored.change([{"part": "head", "layer": 5, "at": 0, "value": "zero"}])
    explored.show()
    tab = opened(explored.page())
    assert [chip.text for chip in tab.all("#changes li")] == ["head 5.0 → 0"]
    readings = (explored.now, explored.before)
    for reading, column in zip(readings, tab.all("#next .columns > div"), strict=True):
        best = reading.logits[-1].argmax()
        assert label(demo.tokenizer.to_str_tokens([best])[0]) in column.text.split("\n")[1]
    before, now = (reading.data["attribution"] for reading in (explored.before, explored.now))
    assert now["difference"] == before["difference"]
    differences = [
        np.frombuffer(reading.numbers, np.float32, now["difference"][2], now["difference"][1])[-1]
        for reading in readings
    ]
    assert "in all {:.2f} (before {:.2f})".format(*differences) in tab.text("#attribution-of")
    assert len(tab.all("#by-head .bar i.changed")) == 4

    seen = []
    for which in ("now", "before", "change"):
        tab.driver.execute_script(
            "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('change'))",
            tab.one("#pictures select"),
            which,
        )
        assert tab.state("pictures") == (which,)
        seen.append(tab("document.querySelector('#one-head canvas').toDataURL()"))
    assert seen[0] != seen[2] != seen[1]


def test_a_page_without_changes_speaks_of_no_before(tab):
    assert not tab.one("#pictures").is_displayed()
    assert "before)" not in tab.text("main")
    assert tab.all("#next .columns") == []


# ---- a model that is trained ---------------------------------------------------------------------


def test_what_the_loss_asks_for_is_drawn_for_a_model_that_is_trained(opened, demo, tab):
    assert not tab.all("#loss-view")
    model = TrainableModel.from_pretrained(sf.demo_path())
    model.tokenizer = demo.tokenizer
    subject = read_subject("look", model, TEXT)
    loss, parts, sizes = loss_by_part(subject, subject.run(["*"])[1])
    tab = opened(sf.look(model, TEXT))
    assert f"is {loss:.3f} nats" in tab.text("#loss-of")
    assert not tab.one("#run-view").is_displayed()
    assert len(tab.text("#loss-by-head .axis").split()) == 3

    def numbers(column):
        return [float(b.text.replace("−", "-")) for b in tab.all(f"#loss-by-{column} .bar b")]

    tab("page.choose({ layer: 3 })")
    heads = parts["without_heads"]
    expected = np.stack([heads.sum(-1), parts["without_mlps"]], -1).ravel()
    np.testing.assert_allclose(numbers("layer"), expected, rtol=0.051)
    np.testing.assert_allclose(numbers("head"), heads[3], rtol=0.051)
    tab.click(tab.one("input[name=asks][value=size]"))
    heads = parts["head_sizes"]
    expected = np.stack([np.linalg.norm(heads, axis=-1), parts["mlp_sizes"]], -1).ravel()
    np.testing.assert_allclose(numbers("layer"), expected, rtol=0.051)
    assert tab.text("#loss-by-head .axis").split()[0] == "0"  # a size is never below it
    tab.click(tab.all("#loss-by-layer .bar")[2])
    assert tab.state("layer") == (1,)
    np.testing.assert_allclose(numbers("head"), heads[1], rtol=0.051)
    tab("page.choose({ activation: 'attn.z', token: 2 })")
    size = float(f"{sizes['layers.1.attn.z'][2]:.3g}")
    assert "of the loss's gradient by it " in tab.text("#numbers")
    assert float(tab.text("#numbers").split("by it ")[1].split(";")[0]) == size
    tab("page.choose({ activation: 'attn.pattern' })")  # no backward pass has that
    assert "gradient" not in tab.text("#numbers")


def test_the_curves_of_a_run_are_drawn(opened, demo):
    log = [{"step": at, "loss": 9 - at, "lr": 0.001 * at} for at in range(1, 9)]
    log[3]["val_loss"], log[7]["val_loss"] = 7.5, 2.5
    reading = read_text(read_subject("look", demo, TEXT), "about")
    tab = opened(Page(page_of(reading, run=curves(log)), "about"))
    assert tab.text("#run-of") == (
        "After step 8: loss 1, validation loss 2.5, learning rate 0.008. Dots: the validation loss."
    )

    def points(line):
        numbers = line.get_attribute("points").replace(",", " ").split()
        return np.array(numbers, float).reshape(-1, 2)

    x, y = points(tab.one("#run-curve .each")).T
    np.testing.assert_allclose(np.diff(x), np.full(7, x[1] - x[0]))
    np.testing.assert_allclose(np.diff(y), np.full(7, y[1] - y[0]))
    assert x[0] < x[-1]
    assert y[0] < y[-1]  # downwards
    assert len(tab.all("#run-curve circle")) == 2
    assert not tab.one("input[name=curve][value=norm]").is_enabled()
    tab.click(tab.one("input[name=curve][value=lr]"))
    assert points(tab.one("#run-curve .each"))[-1, 1] < y[-1]
    assert tab.all("#run-curve circle") == []
