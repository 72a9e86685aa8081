"""What README and docs say works when typed, and their links lead somewhere."""

import contextlib
import importlib.util
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import simdformer as sf
from simdformer.learn.catalogue import CATALOGUE

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
}
CHECK = PAGES["docs/check.md"]


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGES[page], re.S)


def block_with(words: str, page: str) -> str:
    (block,) = [block for block in blocks(page) if words in block]
    return block


def run(code: str, names: dict[str, object]) -> list[str]:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), names)
    return printed.getvalue().splitlines()


def test_the_twenty_lines_print_what_their_comments_say() -> None:
    first = blocks("docs/start.md")[0]
    promised = re.findall(r"^print\(.*\)\s+# (.*)$", first, re.M)
    assert promised
    assert run(first, {}) == promised


def test_the_model_lines_run() -> None:
    names: dict[str, Any] = {"sf": sf}
    run(block_with("demo_path", "docs/models.md"), names)
    length = len(names["ids"])
    heads = names["model"].config.num_heads
    assert names["pattern"].shape == (heads, length, length)
    assert names["without"].shape == names["logits"].shape == (length, 1024)
    assert not np.array_equal(names["without"], names["logits"])


def test_the_first_lines_run_and_say_what_their_comment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (lines,) = blocks("README.md")
    names: dict[str, Any] = {}
    assert run(lines, names) == re.findall(r"^print\(.*\) +# ( .*)$", lines, re.M)
    assert names["trace"]["pattern", 5].shape == (4, 25, 25)
    assert (tmp_path / "look.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_the_lines_that_look_into_a_model_run() -> None:
    names: dict[str, Any] = {"sf": sf}
    run(block_with("sf.patch", "docs/interpret.md"), names)
    assert names["back"].shape == names["lost"].shape == (6, 4)
    assert names["lens"].words[-1][-1][0] == " blue"
    assert abs(sum(names["parts"].parts.values()) - names["parts"].difference) < 1e-4
    assert len(names["losses"]) == len(names["trace"].tokens) - 1
    assert names["page"].about == "6 layers of 4 heads, 25 tokens"


def test_the_diagnosis_reads_as_printed() -> None:
    printed = run(block_with("report = sf.check(sf.nn", "docs/check.md"), {"np": np, "sf": sf})
    assert "```text\n" + "\n".join(printed) + "\n```" in CHECK


def test_the_mistake_of_ones_own_is_found() -> None:
    names: dict[str, Any] = {}
    run(block_with("import mistakes", "docs/check.md"), names)
    try:
        x = np.random.default_rng(0).standard_normal((3, 4), np.float32) * 60
        with np.errstate(all="ignore"):
            e = np.exp(x - x.min(-1, keepdims=True))
            report = sf.check("softmax", e / e.sum(-1, keepdims=True), x)
        assert "softmax.minimum_subtracted" in [one.name for one in report.diagnosis]
    finally:
        del CATALOGUE.variations["softmax.minimum_subtracted"]


def test_the_lines_on_traces_run_and_a_report_reads_as_printed() -> None:
    model = sf.from_pretrained(sf.demo_path())
    ids = [1, 2, 3, 4, 5, 6]
    _, trace = model.run_with_cache(ids)
    x = trace["layers.0.resid_pre"]
    normed = sf.rms_norm(
        x, model.transformer.weights.layers[0].attn_norm, eps=model.config.norm_eps
    )
    names: dict[str, Any] = {"sf": sf, "model": model, "ids": ids, "x": x, "x_normed": normed}
    run(block_with("check_trace", "docs/check.md"), names)
    assert names["report"].ok

    before = {name: trace[name] for name in list(trace)[: list(trace).index("layers.1.mlp.gate")]}
    gate = model.transformer.weights.layers[0].mlp.gate_up[0]
    wrong = sf.linear(trace["layers.1.mlp_norm"], gate)
    report = sf.check_trace(before | {"layers.1.mlp.gate": wrong}, model, ids)
    printed = re.findall(r"```text\n(✗ layers.*?)```", CHECK, re.S)
    assert len(printed) == 1
    said = [line.strip() for line in repr(report).splitlines()]
    for line in printed[0].splitlines():
        assert line.strip() in said, line


def test_the_lines_on_testing_run() -> None:
    q = np.random.default_rng(0).standard_normal((2, 3, 8), np.float32)
    turned = sf.rope(q, layout="half", theta=1e6)
    run(
        block_with("assert_right", "docs/check.md"),
        {"sf": sf, "q": q, "q_turned": turned, "fast": q, "slow": q},
    )


def test_the_exercise_reads_as_printed() -> None:
    def scaled_dot_product_attention(query, key, value, mask=None, scale=None):  # type: ignore[no-untyped-def]
        scores = query @ key.swapaxes(-1, -2) * (scale or query.shape[-1] ** -0.5)
        scores = scores if mask is None else scores + mask
        return sf.softmax(np.where(np.isneginf(scores).all(-1, keepdims=True), 0, scores)) @ value

    outcome = sf.exercises.check(scaled_dot_product_attention)
    (printed,) = re.findall(r"```text\n(✗ scaled.*?)```", CHECK, re.S)
    assert printed.rstrip() in repr(outcome)
    assert f"{len(sf.exercises.EXERCISES)} functions without bodies" in CHECK


def test_the_commands_exist() -> None:
    commands = set(re.findall(r"^\$ simdformer (\w+)", "\n".join(PAGES.values()), re.M))
    assert {"demo", "run", "chat", "trace", "info"} <= commands
    for command in commands:
        assert importlib.util.find_spec(f"simdformer.cli.{command}"), command


def test_the_table_names_every_operation_and_layer() -> None:
    table = PAGES["docs/functions.md"].split("## What the numbers")[0]
    missing = [
        name
        for name in [*sf.functional.__all__, *sf.nn.__all__]
        if f"`{name}" not in table and f".{name}`" not in table
    ]
    assert set(missing) <= {"PackedWeight", "RopeFrequencies"}


def anchors(page: str) -> set[str]:
    """What #fragments of a page lead to: its headings, as GitHub writes them."""
    headings = re.findall(r"^#+ (.*)$", PAGES[page], re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", sorted(PAGES))
def test_every_link_leads_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", PAGES[page]):
        if re.match(r"https?://", target):
            continue
        path, _, fragment = target.partition("#")
        found = (ROOT / page).parent / path if path else ROOT / page
        assert found.exists(), target
        if fragment:
            assert fragment in anchors(str(found.resolve().relative_to(ROOT))), target


@pytest.mark.parametrize("page", sorted(PAGES))
def test_every_path_that_a_page_names_exists(page: str) -> None:
    """`cpp/core/parallel.cpp`, `tests/kernels/`: with its folder, as seen from the top."""
    if page == "CHANGELOG.md":
        return  # tells of what was, too
    named = re.findall(r"`((?:cpp|docs|notebooks|python|tests|\.ci)/[\w./-]*)`", PAGES[page])
    assert not [path for path in named if not (ROOT / path).exists()]
