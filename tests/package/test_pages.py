"""What README and docs say works when pasted into an empty session, and their links lead somewhere.

A page marks a block that cannot run so, in the line above it: `<!-- needs a network -->`, or
`<!-- takes minutes -->`.
"""

import contextlib
import io
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

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


class Block(NamedTuple):
    page: str
    language: str
    code: str
    mark: str  # why it does not run in an empty session, if it does not

    def __str__(self) -> str:
        return f"{self.page}: {self.code.splitlines()[0][:40]}"


BLOCKS = [
    Block(page, language, code, mark)
    for page, text in PAGES.items()
    for mark, language, code in re.findall(
        r"^(?:<!-- ((?:needs|takes) [^\n]*) -->\n)?```(python|console)\n(.*?)^```$",
        text,
        re.M | re.S,
    )
]
ALL_RUN = {"README.md", "docs/start.md", "docs/check.md", "docs/interpret.md"}


def python_blocks(page: str) -> list[str]:
    return [block.code for block in BLOCKS if block[:2] == (page, "python")]


def block_with(words: str, page: str) -> str:
    (block,) = [block for block in python_blocks(page) if words in block]
    return block


@pytest.fixture(autouse=True)
def without_a_mistake_of_ones_own() -> Iterator[None]:
    """The one that a block of docs/check.md adds is gone afterwards."""
    yield
    CATALOGUE.variations.pop("softmax.minimum_subtracted", None)


def run(code: str, names: dict[str, object]) -> list[str]:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), names)
    return printed.getvalue().splitlines()


def promised(code: str) -> list[str]:
    """What the comments behind calls of print say that they print."""
    return re.findall(r"^print\(.*\) +# ( ?.*)$", code, re.M)


# ---- every block runs alone ----------------------------------------------------------------------


def test_few_blocks_cannot_run_and_none_of_a_first_page() -> None:
    marked = [block for block in BLOCKS if block.mark]
    assert 4 * len(marked) <= len(BLOCKS)
    assert not {block.page for block in marked} & ALL_RUN
    others = [
        page for page in PAGES if re.search(r"^```(?!python|console|text|$)", PAGES[page], re.M)
    ]
    assert others == []  # what else begins a block is neither run nor known to be output


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if block.language == "python" and not block.mark], ids=str
)
def test_a_block_of_python_runs_in_an_empty_session_and_prints_what_it_says(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if block.page == "docs/plugins.md":
        pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    printed = run(block.code, {"__name__": "__main__"})
    said = promised(block.code)
    assert not said or printed == said


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if block.language == "console" and not block.mark], ids=str
)
def test_the_commands_of_a_block_run_one_after_the_other(
    block: Block,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: Callable[..., tuple[int, str, str]],
) -> None:
    """Those of simdformer and echo run; pip and make, which install and build, would find what they
    are told to."""
    monkeypatch.chdir(tmp_path)
    for line in re.findall(r"^\$ (.*)$", block.code, re.M):
        program, *arguments = words = shlex.split(line, comments=True)
        if program == "simdformer":
            status, _, said = command(*arguments)
            wrong = words[1] == "check" and "--hint" not in words  # nothing is written yet
            assert status == wrong, said
        elif program == "make":
            subprocess.run(["make", "-n", *arguments], cwd=ROOT, check=True, capture_output=True)
        elif words[:2] == ["pip", "install"]:
            (extras,) = [set(re.findall(r"[a-z]+", word)) for word in words if word[0] == "."]
            project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
            assert extras <= set(project["optional-dependencies"])
        else:
            assert program in ("echo", "python"), f"who runs {program}?"
            code = line.replace("python ", f"{shlex.quote(sys.executable)} ", 1)
            subprocess.run(code, shell=True, check=True, capture_output=True)


# ---- and says what the page says -----------------------------------------------------------------


def test_the_model_lines_give_what_they_say() -> None:
    names: dict[str, Any] = {}
    run(block_with("demo_path", "docs/models.md"), names)
    length = len(names["ids"])
    heads = names["model"].config.num_heads
    assert names["pattern"].shape == (heads, length, length)
    assert names["without"].shape == names["logits"].shape == (length, 1024)
    assert not np.array_equal(names["without"], names["logits"])


def test_the_first_lines_give_what_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (lines,) = python_blocks("README.md")
    names: dict[str, Any] = {}
    run(lines, names)
    assert names["trace"]["pattern", 3].shape == (4, 23, 23)
    assert (tmp_path / "look.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_the_lines_that_look_into_a_model_give_what_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    run(block_with("sf.patch", "docs/interpret.md"), names)
    assert names["back"].shape == names["lost"].shape == (6, 4)
    assert names["lens"].words[-1][-1][0] == " blue"
    assert abs(sum(names["parts"].parts.values()) - names["parts"].difference) < 1e-4
    assert len(names["losses"]) == len(names["trace"].tokens) - 1
    assert names["page"].about == "6 layers of 4 heads, 23 tokens"


def test_the_page_of_check_is_short_for_those_who_begin() -> None:
    first, _ = CHECK.split("The rest of this page is for later.\n")
    assert len(first.splitlines()) <= 45
    assert all(verdict in first for verdict in ("✓ right", "✗ wrong", "≈ nearly right"))


@pytest.mark.parametrize("call", ["scaled_dot_product_attention, mine", "nn.MultiHeadAttention"])
def test_the_diagnosis_reads_as_printed(call: str) -> None:
    printed = run(block_with(f"report = sf.check(sf.{call}", "docs/check.md"), {})
    assert "```text\n" + "\n".join(printed) + "\n```" in CHECK


def test_the_mistake_of_ones_own_is_found() -> None:
    run(block_with("sf.mistakes.add", "docs/check.md"), {})
    x = np.random.default_rng(0).standard_normal((3, 4), np.float32) * 60
    with np.errstate(all="ignore"):
        e = np.exp(x - x.min(-1, keepdims=True))
        report = sf.check("softmax", e / e.sum(-1, keepdims=True), x)
    assert "softmax.minimum_subtracted" in [one.name for one in report.diagnosis]


def test_a_report_on_a_trace_reads_as_printed() -> None:
    names: dict[str, Any] = {}
    run(block_with("check_trace", "docs/check.md"), names)
    model, ids = names["model"], names["ids"]
    assert names["report"].ok

    _, trace = model.run_with_cache(ids)
    before = {name: trace[name] for name in list(trace)[: list(trace).index("layers.1.mlp.gate")]}
    gate = model.transformer.weights.layers[0].mlp.gate_up[0]
    wrong = sf.linear(trace["layers.1.mlp_norm"], gate)
    report = sf.check_trace(before | {"layers.1.mlp.gate": wrong}, model, ids)
    printed = re.findall(r"```text\n(✗ layers.*?)```", CHECK, re.S)
    assert len(printed) == 1
    said = [line.strip() for line in repr(report).splitlines()]
    for line in printed[0].splitlines():
        assert line.strip() in said, line


def test_the_exercise_reads_as_printed() -> None:
    def scaled_dot_product_attention(query, key, value, mask=None, scale=None):  # type: ignore[no-untyped-def]
        scores = query @ key.swapaxes(-1, -2) * (scale or query.shape[-1] ** -0.5)
        scores = scores if mask is None else scores + mask
        return sf.softmax(np.where(np.isneginf(scores).all(-1, keepdims=True), 0, scores)) @ value

    outcome = sf.exercises.check(scaled_dot_product_attention)
    (printed,) = re.findall(r"```text\n(✗ scaled_dot_product_attention  .*?)```", CHECK, re.S)
    assert printed.rstrip() in repr(outcome)
    assert f"{len(sf.exercises.EXERCISES)} functions without bodies" in CHECK


def test_every_command_is_on_a_page() -> None:
    told = set(re.findall(r"^\$ (?:mpiexec .*)?simdformer (\w+)", "\n".join(PAGES.values()), re.M))
    told |= set(re.findall(r"`simdformer (\w+)", PAGES["docs/start.md"]))
    folder = ROOT / "python/simdformer/cli"
    assert told == {path.stem for path in folder.glob("[a-z]*.py")}


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
