"""What help() says: every public name is documented, and every example in the package runs."""

import doctest
import importlib
import inspect
import pkgutil
import re

import numpy as np
import pytest

import simdformer as sf
from simdformer import functional, nn, reference

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
OPERATIONS = [*(name for name in reference.forward.__all__ if name != "RopeFrequencies"), "pack"]
LAYERS = [
    "MultiHeadAttention",
    "GroupedQueryAttention",
    "MLP",
    "RMSNorm",
    "LayerNorm",
    "Embedding",
    "TransformerBlock",
]
ELEMENTWISE = ["silu", "gelu", "relu", "swiglu"]
RUNTIME = [
    "isas",
    "isa",
    "set_isa",
    "use_isa",
    "get_num_threads",
    "set_num_threads",
    "num_threads",
    "show_config",
]


def modules():
    """Every module of the package that its required dependencies suffice to import."""
    found = [sf]
    for info in pkgutil.walk_packages(sf.__path__, "simdformer."):
        if info.name.rpartition(".")[2] in ("_core", "__main__"):
            continue
        found.append(importlib.import_module(info.name))
    return found


MODULES = modules()
# What help() is asked about: its examples are pasted, where nothing of its module is known.
PUBLIC = {
    id(getattr(module, name))
    for module in MODULES
    if module.__name__.count(".") < 2 and not module.__name__.startswith("simdformer._")
    for name in getattr(module, "__all__", ())
}


def examples(module):
    """Those of public things with nothing around them, of others beside what they use."""
    for name, thing in vars(module).items():
        if getattr(thing, "__module__", "") == module.__name__ and callable(thing):
            known = {} if id(thing) in PUBLIC else vars(module).copy()
            yield from doctest.DocTestFinder().find(thing, name, module, known)
    yield from doctest.DocTestFinder(recurse=False).find(module, module.__name__, module, {})


@pytest.mark.sampled(2)
@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_example_runs_and_every_module_says_what_it_is(module):
    assert module.__doc__
    for example in examples(module):
        with np.printoptions():
            result = doctest.DocTestRunner(optionflags=FLAGS).run(example)
        assert result.failed == 0, example.name


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_documents_shapes_dtypes_what_it_raises_and_an_example(name):
    function = getattr(sf, name)
    assert function is getattr(functional, name)
    text = inspect.getdoc(function)
    assert text, "no docstring"
    assert name in ELEMENTWISE or re.search(r"\(\.\.\.|\([A-Z](, ?\w+)*,?\)|axis|head_dim", text), (
        "shapes?"
    )
    assert re.search(r"Raises|(Type|Value|Index|Buffer)Error", text), "not what it raises"
    assert ">>>" in text, "no example"
    for parameter in inspect.signature(function).parameters:
        said = text + (functional.__doc__ or "")  # `out` and dtypes are described once, for all
        assert re.search(rf"\b{parameter}\b", said), f"nothing about {parameter}"
    assert re.search(r"float32|float64|dtype", said), "no dtypes"


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_has_an_example(name):
    layer = getattr(nn, name)
    assert layer.__doc__, "no docstring"
    assert inspect.getdoc(layer.__call__), "its call is not described"


@pytest.mark.parametrize("name", RUNTIME)
def test_every_setting_is_documented(name):
    assert inspect.getdoc(getattr(sf, name))


def test_every_public_name_is_exported_and_documented():
    assert {*OPERATIONS, *RUNTIME, "nn"} <= set(sf.__all__)
    for name in sf.__all__:
        thing = getattr(sf, name)
        if callable(thing) or inspect.ismodule(thing):
            assert inspect.getdoc(thing), name


def test_signatures_are_visible_and_typed():
    """help() and editors show names, defaults and types, not (*args, **kwargs)."""
    for name in OPERATIONS:
        signature = inspect.signature(getattr(sf, name))
        assert signature.return_annotation is not inspect.Signature.empty, name
        for parameter in signature.parameters.values():
            assert parameter.annotation is not inspect.Parameter.empty, f"{name}({parameter.name})"
