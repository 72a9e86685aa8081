"""What help(), `?` and completion show: signatures that can be read, and public names only."""

import collections.abc
import inspect
import pydoc
import re
import subprocess
import sys
import typing
from types import ModuleType

import numpy as np
import pytest

import simdformer as sf
from simdformer import bench, functional, runtime
from simdformer.types import Alias, Array, ArrayLike, SupportsDLPack

MODULES = [
    sf,
    functional,
    runtime,
    bench,
    *(thing for name in sf.__all__ if isinstance(thing := getattr(sf, name), ModuleType)),
]
WITHOUT = {"CheckError", "PackedWeight"}  # made by others: no signature that Python could read
LONGEST = 550  # characters of a function; attention has eighteen arguments
MOST_EACH = 40  # characters of a parameter, where there are many: ModelConfig has thirty fields
LONGEST_TYPE = 120  # of one argument
EXPANDED = re.compile(r"numpy\._typing|typing\.(Union|Optional)|ForwardRef|NDArray|_HasDType")


def is_callable(thing: object) -> bool:
    """A function or class that is called; an alias of types is none."""
    return callable(thing) and not isinstance(thing, Alias)


def callables():
    """Each once, under the first name that it has."""
    found = {}
    for module in MODULES:
        for name in module.__all__:
            thing = getattr(module, name)
            if is_callable(thing) and name not in WITHOUT:
                found.setdefault(id(thing), (f"{module.__name__}.{name}", thing))
                if module is not bench and inspect.isclass(thing):
                    for method, function in inspect.getmembers(thing, inspect.isfunction):
                        if not method.startswith("_") or method == "__call__":
                            own = f"{module.__name__}.{name}.{method}"
                            found.setdefault(id(function), (own, function))
    return dict(found.values())


def test_every_public_signature_can_be_read():
    for name, thing in callables().items():
        signature = inspect.signature(thing)
        shown = str(signature)
        assert not EXPANDED.search(shown), f"{name}{shown}"
        kinds = [parameter.annotation for parameter in signature.parameters.values()]
        for kind in (*kinds, signature.return_annotation):
            assert len(inspect.formatannotation(kind)) <= LONGEST_TYPE, f"{name}: {kind}"
        if "self" not in signature.parameters:
            longest = max(LONGEST, MOST_EACH * len(signature.parameters))
            assert len(shown) <= longest, f"{name}: {len(shown)} characters: {shown}"


def test_help_shows_types_by_their_names():
    first = pydoc.render_doc(sf.rope, renderer=pydoc.plaintext).split("\n")[2]
    assert first.startswith(
        "rope(x: ArrayLike, *, layout: Literal['half', 'interleaved'], "
        "positions: ArrayLike | None = None, "
    )
    assert first.endswith(", out: Out | None = None) -> Array")
    text = pydoc.render_doc(sf.nn, renderer=pydoc.plaintext)
    assert "MLP(gate: ArrayLike | PackedWeight | QuantizedWeight, " in text
    assert "from_pretrained(path: str" in pydoc.render_doc(sf, renderer=pydoc.plaintext)


def test_jupyter_shows_the_same():
    oinspect = pytest.importorskip("IPython.core.oinspect")
    themed = "theme_name" in inspect.signature(oinspect.Inspector).parameters
    inspector = oinspect.Inspector(**({"theme_name": "nocolor"} if themed else {}))
    found = inspector.info(sf.rms_norm, "rms_norm")["definition"]
    assert " ".join(found.split()) == (
        "rms_norm( x: ArrayLike, weight: ArrayLike | None = None, *, "
        "eps: float, out: Out | None = None, ) -> Array"
    )


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_dir_shows_public_names(module):
    assert dir(module) == sorted(module.__all__)
    for name in module.__all__:
        assert getattr(module, name) is not None


def test_types_are_still_there_for_programs():
    for name, thing in callables().items():
        if "Axes" in str(inspect.signature(thing)):
            continue  # of matplotlib, which is imported when something is drawn
        for kind in typing.get_type_hints(thing).values():
            assert not isinstance(kind, str), name
    hints = typing.get_type_hints(sf.rope)
    assert hints["layout"] == typing.Literal["half", "interleaved"]
    assert hints["return"] is Array
    assert Array.__value__ == np.typing.NDArray[typing.Any]


def test_an_alias_is_written_as_in_the_source():
    assert repr(ArrayLike | None) == "ArrayLike | None"
    assert repr(int | ArrayLike) == "int | ArrayLike"
    assert repr(Array | SupportsDLPack | sf.PackedWeight) == (
        "Array | SupportsDLPack | PackedWeight"
    )
    assert repr(ArrayLike | typing.Literal["causal"] | None) == (
        "ArrayLike | Literal['causal'] | None"
    )
    assert str(collections.abc.Sequence[Array]) == "collections.abc.Sequence[Array]"
    either = Alias("Whole", int) | Alias("Text", str) | None
    assert either.__value__ == int | str | None


def test_dir_of_the_package_imports_nothing():
    """Completion offers everything that can be asked for, and loads nothing before it is."""
    script = (
        "import sys, simdformer as sf\n"
        "assert 'from_pretrained' in dir(sf)\n"
        "assert 'simdformer.text' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
