"""Names that stand for a checkpoint."""

from pathlib import Path

import pytest

import simdformer as sf
from simdformer.checkpoints.locate import locate

COMMIT = "0123456789abcdef0123456789abcdef01234567"
VARIABLES = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory, which is the home directory too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def download(cache, name="Owner/Name", commit=COMMIT):
    """As `hf download` leaves a model in its cache."""
    model = cache / f"models--{name.replace('/', '--')}"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text(commit)
    snapshot = model / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    return snapshot


def test_demo_is_the_models_name_where_there_is_no_such_path(here):
    assert locate("demo") == sf.demo_path()
    assert repr(sf.from_pretrained("demo")) == repr(sf.from_pretrained(sf.demo_path()))
    for path in ("./demo", Path("demo")):
        assert locate(path) == Path("demo")
    with pytest.raises(FileNotFoundError):
        sf.from_pretrained(Path("demo"))
    (here / "demo").mkdir()
    assert locate("demo") == Path("demo")


@pytest.mark.parametrize(
    ("variables", "cache"),
    [
        ({}, ".cache/huggingface/hub"),
        ({"XDG_CACHE_HOME": "{here}/x"}, "x/huggingface/hub"),
        ({"HF_HOME": "{here}/h", "XDG_CACHE_HOME": "{here}/x"}, "h/hub"),
        ({"HUGGINGFACE_HUB_CACHE": "{here}/u", "HF_HOME": "{here}/h"}, "u"),
        ({"HF_HUB_CACHE": "~/c", "HUGGINGFACE_HUB_CACHE": "{here}/u"}, "c"),
        ({"HF_HUB_CACHE": "$HF_HOME/c", "HF_HOME": "{here}/h"}, "h/c"),
        ({"HF_HUB_CACHE": "", "HF_HOME": ""}, ".cache/huggingface/hub"),
    ],
)
def test_a_downloaded_model_opens_by_its_name(here, monkeypatch, tiny, variables, cache):
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(here=here))
    snapshot = download(here / cache)
    assert locate("Owner/Name") == snapshot
    for file in tiny.iterdir():
        (snapshot / file.name).symlink_to(file)
    assert sf.from_pretrained("Owner/Name").generate("a", 3) == sf.from_pretrained(tiny).generate(
        "a", 3
    )


def test_the_package_of_the_hub_looks_at_the_same_place(here):
    hub = pytest.importorskip("huggingface_hub")
    constants = pytest.importorskip("huggingface_hub.constants")
    assert {name for name in VARIABLES if hasattr(constants, name)} == set(VARIABLES[:3])
    cache = here / ".cache/huggingface/hub"
    (download(cache) / "config.json").write_text("{}")
    file = hub.try_to_load_from_cache("Owner/Name", "config.json", cache_dir=cache)
    assert Path(file).parent == locate("Owner/Name")


@pytest.mark.parametrize("commit", ["", "../../..", COMMIT[:-1], COMMIT[::-1], COMMIT + "\n\n.."])
def test_a_cache_that_does_not_hold_it(here, commit):
    """Damaged, meant to lead elsewhere, or not there."""
    download(here / ".cache/huggingface/hub", commit=commit)
    for name in ("Owner/Name", "Owner/Other", "Qwen/Qwen3-0.6B"):
        with pytest.raises(FileNotFoundError, match=f"`hf download {name}`") as caught:
            sf.from_pretrained(name)
        assert caught.value.filename == name
        assert str(here / ".cache/huggingface/hub") in str(caught.value)


def test_a_name_without_its_owner_says_what_a_model_is(here):
    for name in ("gpt2", "Qwen3-0.6B"):
        with pytest.raises(FileNotFoundError, match="Owner/Name on the Hugging Face hub") as caught:
            sf.from_pretrained(name)
        assert caught.value.filename == name
        assert "did you mean" not in str(caught.value)
    download(here / ".cache/huggingface/hub", "Qwen/Qwen3-0.6B")
    with pytest.raises(FileNotFoundError, match=r"did you mean Qwen/Qwen3-0\.6B, which is in the"):
        sf.from_pretrained("Qwen3-0.6B")


def test_what_looks_like_a_path_is_one(here):
    (here / "models").mkdir()
    paths = ["models/name", "Owner/Name/more", "/Owner/Name", "../Name", "Owner/", "x.bin", ""]
    for path in (*paths, "a\0b/c", "Owner/Ñame"):
        assert locate(path) == Path(path)


def test_a_path_comes_first(here):
    download(here / ".cache/huggingface/hub")
    (here / "Owner" / "Name").mkdir(parents=True)
    assert locate("Owner/Name") == Path("Owner/Name")
    assert locate(Path("Owner/Other")) == Path("Owner/Other")
