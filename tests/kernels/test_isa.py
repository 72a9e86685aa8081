"""Instruction sets: those that run here, the choice between them, and what a wrong choice says."""

import platform
import sys
import threading

import numpy as np
import pytest

import simdformer as sf
from conftest import BYTE_PRODUCTS, normal, same_bits
from operations import OPERATIONS
from simdformer import _core, runtime
from subprocesses import import_error, run_python

pytestmark = pytest.mark.usefixtures("restored")

SLOWEST, BEST = sf.isas()[0], sf.isas()[-1]
x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="instruction sets of x86-64")
several = pytest.mark.skipif(len(sf.isas()) < 2, reason="this machine runs one instruction set")

ORDER = (
    *("baseline", "avx2", "avx2_vnni", "avx512", "avx512_vnni", "avx512_bf16"),
    *("neon", "neon_dotprod"),
)


# ---- one beside another --------------------------------------------------------------------------


@pytest.mark.parametrize("isa", [isa for isa in sf.isas() if isa in BYTE_PRODUCTS])
@pytest.mark.parametrize("operation", list(OPERATIONS))
def test_products_of_bytes_change_nothing_else(isa, operation, dtype, rng):
    """Of an array in whole vectors and parts of them; few rows and many."""
    for shape in [(3, 6, 16), (70, 67)]:
        x = normal(rng, *shape, dtype=dtype)
        if "rope" in operation:
            x = x[..., : x.shape[-1] // 2 * 2]
        with sf.use_isa(isa):
            found = OPERATIONS[operation](x)
        with sf.use_isa(BYTE_PRODUCTS[isa]):
            assert same_bits(found, OPERATIONS[operation](x))


# ---- what there is -------------------------------------------------------------------------------


def test_isas_lists_those_that_run_here_slowest_first():
    names = sf.isas()
    assert isinstance(names, tuple)
    assert list(names) == [name for name in ORDER if name in names]
    assert set(names) <= set(_core.compiled_isas())
    assert names[0] == ("neon" if platform.machine() == "aarch64" else "baseline")


@x86
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/cpuinfo")
def test_what_runs_here_is_what_the_processor_and_the_system_have():
    """The kernel lists a flag only if it saves the registers that go with it."""
    with open("/proc/cpuinfo") as file:
        (line, *_) = [line for line in file if line.startswith("flags")]
    flags = set(line.split())
    needs = {"baseline": {"sse2"}}
    needs["avx2"] = {"avx2", "fma", "f16c"}
    needs["avx2_vnni"] = needs["avx2"] | {"avx_vnni"}
    needs["avx512"] = needs["avx2"] | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
    needs["avx512_vnni"] = needs["avx512"] | {"avx512_vnni"}
    needs["avx512_bf16"] = needs["avx512_vnni"] | {"avx512_bf16"}
    assert sf.isas() == tuple(name for name in _core.compiled_isas() if needs[name] <= flags)


def test_the_best_is_the_default():
    assert run_python("print(sf.isa(), *sf.isas())").split() == [BEST, *sf.isas()]


# ---- the choice ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sf.isas())
def test_an_instruction_set_is_chosen_by_its_name_in_any_case(name):
    for spelling in (name, name.upper(), name.title()):
        sf.set_isa(SLOWEST)
        sf.set_isa(spelling)
        assert sf.isa() == name
        with sf.use_isa(spelling):
            assert sf.isa() == name


def test_use_isa_gives_back_what_was_there():
    sf.set_isa(BEST)
    with sf.use_isa(SLOWEST):
        assert sf.isa() == SLOWEST
        with sf.use_isa(BEST):
            assert sf.isa() == BEST
        assert sf.isa() == SLOWEST
    assert sf.isa() == BEST
    with pytest.raises(KeyError), sf.use_isa(SLOWEST):
        raise KeyError
    assert sf.isa() == BEST


@x86
@several
def test_another_choice_runs_other_code(rng):
    """The baseline has no fused multiply-add, so sums of products are rounded differently."""
    x, weight = normal(rng, 20, 1000), normal(rng, 30, 1000)
    with sf.use_isa("baseline"):
        plain = sf.linear(x, weight)
    with sf.use_isa("avx2"):
        fused = sf.linear(x, weight)
    assert not same_bits(plain, fused)
    np.testing.assert_allclose(plain, fused, rtol=1e-4, atol=1e-4)


@several
def test_a_call_uses_one_instruction_set_while_another_thread_changes_it(rng):
    x, weight = normal(rng, 200, 700), normal(rng, 300, 700)
    possible = {}
    for name in sf.isas():
        with sf.use_isa(name):
            possible[name] = sf.linear(x, weight).tobytes(), sf.softmax(x).tobytes()
    products, softmaxes = zip(*possible.values(), strict=True)
    done = threading.Event()

    def change():
        while not done.is_set():
            for name in sf.isas():
                sf.set_isa(name)

    other = threading.Thread(target=change)
    other.start()
    try:
        for _ in range(60):
            assert sf.linear(x, weight).tobytes() in products
            assert sf.softmax(x).tobytes() in softmaxes
    finally:
        done.set()
        other.join()


@pytest.mark.parametrize("function", [sf.set_isa, sf.use_isa])
@pytest.mark.parametrize(
    ("name", "error", "found"),
    [
        ("sse9", ValueError, "is 'sse9'"),
        ("", ValueError, "is ''"),
        (" avx2", ValueError, "is ' avx2'"),
        (None, TypeError, "is of type NoneType"),
        (2, TypeError, "is of type int"),
        (b"avx2", TypeError, "is of type bytes"),
    ],
)
def test_a_bad_name_is_refused(function, name, error, found):
    before = sf.isa()
    with pytest.raises(error) as caught:
        function(name)
    valid = ", ".join(sf.isas())
    assert str(caught.value) == f"{function.__name__}: name {found}, needs one of {valid}"
    assert sf.isa() == before


def test_an_instruction_set_that_cannot_be_used_is_refused_with_the_reason(monkeypatch):
    absent = next(name for name in ORDER if name not in _core.compiled_isas())
    with pytest.raises(
        ValueError, match=f"^set_isa: name is '{absent}', which this build does not "
    ):
        sf.set_isa(absent)
    monkeypatch.setattr(runtime._core, "compiled_isas", lambda: ("baseline", "avx2", "avx512"))
    monkeypatch.setattr(runtime._core, "isas", lambda: ("baseline", "avx2"))
    with pytest.raises(ValueError, match="set_isa") as caught:
        sf.set_isa("AVX512")
    assert str(caught.value) == (
        "set_isa: name is 'AVX512', which this machine cannot run, needs one of baseline, avx2"
    )


def test_the_module_itself_refuses_what_it_cannot_run():
    before = sf.isa()
    assert _core.set_isa("no such thing") is False
    assert sf.isa() == before
    assert _core.set_isa(BEST) is True


# ---- the environment -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", sf.isas())
def test_simdformer_isa_chooses(name):
    assert run_python("print(sf.isa())", SIMDFORMER_ISA=name) == name
    assert run_python("print(sf.isa())", SIMDFORMER_ISA=name.upper()) == name


def test_an_empty_simdformer_isa_counts_as_not_set():
    assert run_python("print(sf.isa())", SIMDFORMER_ISA="") == BEST


@pytest.mark.parametrize("name", ["sse9", "avx", "best", "avx2,avx512"])
def test_an_unknown_simdformer_isa_is_an_error_at_import(name):
    assert import_error(SIMDFORMER_ISA=name) == (
        f"ValueError: simdformer: the environment variable SIMDFORMER_ISA is {name!r}, "
        f"needs one of {', '.join(sf.isas())}"
    )


def test_a_simdformer_isa_of_another_machine_is_an_error_at_import():
    absent = next(name for name in ORDER if name not in _core.compiled_isas())
    assert import_error(SIMDFORMER_ISA=absent.upper()) == (
        f"ValueError: simdformer: the environment variable SIMDFORMER_ISA is {absent.upper()!r}, "
        f"which this build does not hold, needs one of {', '.join(sf.isas())}"
    )


# ---- show_config ---------------------------------------------------------------------------------


def test_show_config_returns_the_facts():
    with sf.use_isa(SLOWEST), sf.num_threads(7):
        facts = sf.show_config(mode="dicts")
    assert list(facts) == ["simdformer", "isa", "threads", "built with", "running on"]
    assert facts["simdformer"] == {"version": sf.__version__}
    assert facts["isa"] == {
        "in use": SLOWEST,
        "run here": sf.isas(),
        "compiled": _core.compiled_isas(),
    }
    assert facts["threads"] == {"in use": 7, "set by": "the running program"}
    assert set(facts["built with"]) == {"compiler", "xsimd", "xtensor", "pybind11"}
    for library in ("xsimd", "xtensor", "pybind11"):
        assert [part.isdecimal() for part in facts["built with"][library].split(".")] == [True] * 3
    assert facts["built with"]["compiler"].split()[0] in ("gcc", "clang")
    assert facts["running on"]["python"] == platform.python_version()
    assert facts["running on"]["numpy"] == np.__version__


def test_show_config_prints_the_same_facts_for_people(capsys):
    assert sf.show_config() is None
    printed = capsys.readouterr().out
    assert printed.startswith(f"simdformer\n  version     {sf.__version__}\nisa\n")
    for entries in sf.show_config(mode="dicts").values():
        for name, value in entries.items():
            text = ", ".join(value) if isinstance(value, tuple) else str(value)
            assert f"  {name:<10}  {text}\n" in printed


def test_show_config_refuses_another_mode():
    with pytest.raises(ValueError, match="show_config: mode is 'json', needs"):
        sf.show_config(mode="json")
