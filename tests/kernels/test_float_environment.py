"""The floating-point environment: left alone by import and calls, followed by all threads.

Subnormals, rounding and traps are settings of each thread (MXCSR on x86-64, FPCR on aarch64).
"""

import ctypes
import platform
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import simdformer as sf
from conftest import normal
from operations import OPERATIONS
from subprocesses import environment

pytestmark = [
    pytest.mark.skipif(
        platform.libc_ver()[0] != "glibc" or platform.machine() not in ("x86_64", "aarch64"),
        reason="knows where glibc keeps the control words of x86-64 and aarch64",
    ),
    pytest.mark.xdist_group("threads"),
]

# Control words without the flags of what has happened: bits 6 and up of MXCSR, all of FPCR.
TOOLS = """
import ctypes, os, platform, struct, sys, threading
libm = ctypes.CDLL("libm.so.6")
X86 = platform.machine() == "x86_64"

def fenv():
    memory = ctypes.create_string_buffer(64)
    libm.fegetenv(memory)
    return memory

def control():
    "How this thread computes: the words that decide rounding, subnormals and traps."
    memory = fenv().raw
    if X86:
        return struct.unpack_from("<H", memory)[0], struct.unpack_from("<I", memory, 28)[0] & ~63
    return struct.unpack_from("<I", memory)

MODES = {  # MXCSR, FPCR
    "ordinary": (0, 0),
    "subnormals are zeros": (0x8040, 1 << 24),
    "upward": (0x4000, 1 << 22),
    "downward": (0x2000, 2 << 22),
    "toward zero": (0x6000, 3 << 22),
}

def set_mode(name):
    memory = fenv()
    offset, all_modes = (28, 0xE040) if X86 else (0, 7 << 22)
    word = struct.unpack_from("<I", memory.raw, offset)[0] & ~all_modes
    struct.pack_into("<I", memory, offset, word | MODES[name][0 if X86 else 1])
    libm.fesetenv(memory)
"""

MODES = ["ordinary", "subnormals are zeros", "upward", "downward", "toward zero"]


def python(code: str, **variables: str) -> str:
    """What a program prints that begins with TOOLS; it has to end well."""
    done = subprocess.run(
        [sys.executable, "-c", TOOLS + textwrap.dedent(code)],
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout.strip()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", MODES)
def test_import_and_calls_leave_the_callers_environment_alone(mode):
    """Whatever it was: also that of a thread of Python's, which inherits the main thread's."""
    code = f"""
    import numpy as np
    import ml_dtypes
    set_mode({mode!r})
    before = control()
    import simdformer as sf
    changed = [] if control() == before else ["import"]
    x = np.random.default_rng(0).standard_normal((400, 600), dtype=np.float32)

    def calls():
        if control() != before:
            changed.append("a new thread")
        for isa in sf.isas():
            sf.set_isa(isa)
            for name, call in {{
                "silu": lambda: sf.silu(x),
                "gelu": lambda: sf.gelu(x),
                "swiglu": lambda: sf.swiglu(x, x),
                "softmax": lambda: sf.softmax(x),
                "softmax over columns": lambda: sf.softmax(x, 0),
                "rms_norm": lambda: sf.rms_norm(x, eps=1e-6),
                "layer_norm": lambda: sf.layer_norm(x, eps=1e-6),
                "rope": lambda: sf.rope(x, layout="half"),
                "linear": lambda: sf.linear(x, x),
                "packed": lambda: sf.linear(x, sf.pack(x.astype(ml_dtypes.bfloat16))),
                "attention": lambda: sf.scaled_dot_product_attention(x, x, x),
                "a refusal": lambda: sf.linear(x, x[:, :5]),
            }}.items():
                try:
                    call()
                except ValueError:
                    assert name == "a refusal"
                if control() != before:
                    changed.append((isa, name))

    calls()
    thread = threading.Thread(target=calls)
    thread.start()
    thread.join()
    print(changed)
    """
    assert python(code, SIMDFORMER_NUM_THREADS="4") == "[]"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", MODES[1:])
def test_all_threads_of_a_call_compute_as_the_caller_does(mode):
    """The workers keep nothing of the thread that made them, nor of the call before."""
    code = f"""
    import numpy as np
    import simdformer as sf
    rng = np.random.default_rng(0)
    x = rng.standard_normal((900, 700), dtype=np.float32)
    tiny = (x * np.float32(1e-39)).astype(np.float32)
    one = np.ones_like(x)
    calls = {{
        "swiglu": lambda: sf.swiglu(one, tiny),
        "rms_norm": lambda: sf.rms_norm(x, eps=1e-6),
        "softmax": lambda: sf.softmax(x),
        "linear": lambda: sf.linear(x, x),
        "attention": lambda: sf.scaled_dot_product_attention(x[:300], x, x),
    }}

    def bits(threads):
        sf.set_num_threads(threads)
        return {{name: call().tobytes() for name, call in calls.items()}}

    wanted = {{}}
    for name in ("ordinary", {mode!r}):
        set_mode(name)
        wanted[name] = bits(1)
    differ = [name for name in calls if len({{each[name] for each in wanted.values()}}) == 2]
    wrong = set()
    for round in range(6):  # the pool is made in the odd mode
        for name in ({mode!r}, "ordinary"):
            set_mode(name)
            got = bits(4)
            wrong |= {{(name, call) for call in calls if got[call] != wanted[name][call]}}
    print(wrong, differ)
    """
    wrong, differ = python(code).split(" ", 1)
    assert wrong == "set()"
    assert "swiglu" in differ, "the mode changes nothing: this test shows nothing"


def test_subnormals_are_kept_on_every_thread(isa, dtype, rng):
    """Numbers below the normal ones go through the operations that copy or scale them exactly."""
    if np.dtype(dtype).itemsize == 8:
        tiny = (rng.integers(1, 2**50, (500, 700)).astype(np.int64)).view(np.float64)
    else:
        width = {2: np.uint16, 4: np.uint32}[np.dtype(dtype).itemsize]
        top = {"float16": 2**10, "bfloat16": 2**7, "float32": 2**23}[str(dtype)]
        tiny = rng.integers(1, top, (500, 700)).astype(width).view(dtype)
    identity = np.eye(700, dtype=dtype)
    with sf.num_threads(4):
        assert sf.relu(tiny).tobytes() == tiny.tobytes()
        assert sf.embedding(np.arange(500), tiny).tobytes() == tiny.tobytes()
        assert sf.linear(tiny, identity).tobytes() == tiny.tobytes()
        one_key = sf.scaled_dot_product_attention(tiny[:, None], tiny[:, None], tiny[:, None])
        assert one_key.tobytes() == tiny.tobytes()
        assert sf.rope(tiny[:, None], layout="half").tobytes() == tiny.tobytes()


def test_ordinary_numbers_raise_no_exception(isa, dtype, rng):
    """Programs that trap invalid operations, division by zero and overflow can call everything."""
    libm = ctypes.CDLL("libm.so.6")
    serious = 0x1 | 0x4 | 0x8 if platform.machine() == "x86_64" else 0x1 | 0x2 | 0x4
    raised = set()
    with sf.num_threads(1):
        for width in (2, 10, 26, 66, 130):
            x = normal(rng, 3, 6, width, dtype=dtype)
            weight = sf.pack(x[0])
            calls = OPERATIONS | {
                "linear": lambda x: sf.linear(x, x[1]),
                "packed": lambda x, weight=weight: sf.linear(x, weight),
                "one row": lambda x, weight=weight: sf.linear(x[0, 0], weight),
                "causal": lambda x: sf.scaled_dot_product_attention(x, x, x, is_causal=True),
                "one query": lambda x: sf.scaled_dot_product_attention(x[:, :1], x, x),
            }
            for name, call in calls.items():
                libm.feclearexcept(0x3F)
                call(x)
                if libm.fetestexcept(serious):
                    raised.add(name)
    assert raised == set()
