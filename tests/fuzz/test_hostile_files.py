"""Files that are damaged, are not what their names say, change while they are read, or ask for more
than there is: a result that fits together, or an exception that names the file, within bounded time
and memory. The readers stand in targets.py, files that lie in lies.py."""

import collections
import json
import os
import pickle
import pickletools
import random
import re
import struct
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import seeds
import simdformer as sf
from checkpoints import refusal
from lies import LIES, archive, state_dict, with_pickle
from simdformer.checkpoints import CheckpointError, read_checkpoint
from simdformer.checkpoints.files import InputFile
from simdformer.checkpoints.pickle_machine import OPCODES, run_pickle
from simdformer.checkpoints.torch_file import read_tensors
from subprocesses import run_python
from targets import TARGETS, check_message
from tokenizer_lies import TOKENIZER_LIES

# ---- files that are damaged ----------------------------------------------------------------------

RUNS = 250
RUN = Path(__file__).with_name("run.py")
SECONDS = os.environ.get("SIMDFORMER_FUZZ_SECONDS")


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_no_input_does_harm(name, tmp_path):
    """So many inputs from a fixed seed, each target in a process of its own, or for
    SIMDFORMER_FUZZ_SECONDS each; run.py has more options."""
    much = ["--seconds", SECONDS] if SECONDS else ["--runs", str(RUNS)]
    ended = subprocess.run(
        [sys.executable, RUN, name, *much, "--findings", tmp_path], capture_output=True, text=True
    )
    findings = [(file.name, file.read_bytes()[:2000]) for file in tmp_path.iterdir()]
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}\n{findings}"


@pytest.fixture(params=TARGETS)
def target(request):
    yield TARGETS[request.param]
    TARGETS[request.param].close()


@pytest.mark.sampled(3)
def test_an_input_cut_anywhere_is_refused(target):
    """At a hundred places, and at every one of its first and last bytes. The beginning of a file of
    some formats may be read."""
    for data in target.inputs():
        assert target(data)
        size = len(data)
        places = {*range(40), *range(0, size, size // 60 + 1), *range(size - 40, size)}
        for end in sorted(place for place in places if 0 <= place < size):
            assert not target(data[:end]) or not target.whole, end


@pytest.mark.sampled(3)
def test_any_byte_of_an_input_may_be_wrong(target):
    """A hundred inputs with one byte changed, and as many with bytes of nobody's behind."""
    chance = random.Random(3)
    for data in target.inputs():
        for _ in range(100):
            at = chance.randrange(len(data))
            target(data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :])
            target(data[: at * chance.randrange(2)] + chance.randbytes(chance.randrange(60)))


# ---- files that change ---------------------------------------------------------------------------


FORMATS = {"config": "huggingface", "minimind": "minimind", "params": "meta", "gguf": "gguf"}
FORMATS |= {"llama2c": "llama2.c"}


@pytest.fixture(params=FORMATS)
def checkpoint(request, tmp_path):
    """A folder with a small checkpoint, and the file of its weights."""
    target = TARGETS[request.param]
    files = target.made(tmp_path, target.inputs()[0])
    assert read_checkpoint(tmp_path).format.name == FORMATS[request.param]
    return tmp_path, files[-1]


def test_a_file_that_shrinks_while_it_is_read_is_an_error(checkpoint):
    folder, file = checkpoint
    found = read_checkpoint(folder)
    size = file.stat().st_size
    os.truncate(file, size // 2)
    with pytest.raises(CheckpointError) as caught:
        [np.asarray(tensor) for tensor in found.weights.values()]
    assert str(caught.value).startswith(f"{file}: found only {size // 2} of its {size} bytes while")
    os.truncate(file, 0)
    with pytest.raises(CheckpointError, match="found only 0 of its"):
        sf.models.Transformer(found.config, found.weights)


def test_a_file_that_is_replaced_while_it_is_read_is_the_old_one(checkpoint):
    folder, file = checkpoint
    found = read_checkpoint(folder)
    before = {name: np.array(tensor) for name, tensor in found.weights.items()}
    file.rename(file.with_suffix(".old"))
    file.write_bytes(b"another")
    for name, tensor in found.weights.items():
        np.testing.assert_array_equal(tensor, before[name])


def test_a_disk_that_fails_names_the_file(tmp_path, monkeypatch):
    (tmp_path / "x").write_bytes(b"data")
    file = InputFile(tmp_path / "x")

    class Broken:
        def read_pieces(self, *_):
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(file, "_open", Broken())
    with pytest.raises(OSError, match=r"Input/output error: .*/x'"):
        file.read(0, 4)


def test_files_are_closed_when_nobody_holds_a_tensor(checkpoint):
    folder, _ = checkpoint

    def files_open():
        links = (f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd"))
        return sum(os.readlink(at).startswith(f"{folder}/") for at in links if os.path.islink(at))

    kept = next(iter(read_checkpoint(folder).weights.values()))
    assert files_open() == 1
    del kept
    for _ in range(3):
        read_checkpoint(folder)
    assert files_open() == 0


# ---- what lies there instead of a file -----------------------------------------------------------

REGULAR = "needs a regular file"
INSTEAD = {  # what it is, how it is made, what is said of it
    "directory": (lambda file: file.mkdir(), f"found a directory, {REGULAR}"),
    "pipe": (lambda file: os.mkfifo(file), f"found a pipe, {REGULAR}"),
    "empty": (lambda file: file.touch(), "found an empty file; download or export it again"),
    "endless": (lambda file: file.touch() or os.truncate(file, 1 << 40), ""),
    "device": (lambda file: file.symlink_to("/dev/zero"), f"found a device, {REGULAR}"),
    "nothing": (lambda file: file.symlink_to("nowhere"), ""),
    "itself": (lambda file: file.symlink_to(file.name), ""),
}
TOKENIZERS = ("tokenizer", "tiktoken", "sentencepiece", "vocab", "llama2c-tokenizer")


@pytest.mark.parametrize("kind", INSTEAD)
@pytest.mark.parametrize("name", TARGETS)
def test_only_regular_files_with_something_inside_are_read(tmp_path, name, kind):
    target, (make, message) = TARGETS[name], INSTEAD[kind]
    of_strangers = target.refusal is CheckpointError
    if kind == "endless" and not of_strangers:
        pytest.skip("a person's own data may be as large as the disk")
    files = target.made(tmp_path, target.inputs()[0])
    for file in files:
        data = file.read_bytes()
        file.unlink()
        make(file)
        for path in target.paths(tmp_path):
            if target.optional and file == files[0] and kind in ("nothing", "itself"):
                target.read(path)
                continue
            with pytest.raises((target.refusal, OSError)) as caught:
                target.read(path)
            found = str(caught.value)
            assert str(tmp_path) in found
            if kind == "endless" and file == files[0] and name in TOKENIZERS:
                assert f"{file}: found {1 << 40} bytes, needs at most" in found
            if not (kind == "directory" and target.folder_too and path == file):  # an empty folder
                assert (message if of_strangers else message.partition(";")[0]) in found
        file.rmdir() if kind == "directory" else file.unlink()
        file.write_bytes(data)


# ---- pickles -------------------------------------------------------------------------------------

# What torch.save writes: containers, text, numbers, the memo, names, calls of names.
KNOWN = """
    PROTO FRAME MARK EMPTY_DICT EMPTY_LIST EMPTY_TUPLE NONE NEWTRUE NEWFALSE BININT BININT1 BININT2
    LONG1 BINFLOAT BINUNICODE SHORT_BINUNICODE TUPLE TUPLE1 TUPLE2 TUPLE3 APPENDS APPEND SETITEMS
    SETITEM BINPUT LONG_BINPUT MEMOIZE BINGET LONG_BINGET GLOBAL STACK_GLOBAL BINPERSID REDUCE BUILD
"""


@pytest.mark.parametrize("opcode", pickletools.opcodes, ids=lambda opcode: opcode.name)
def test_every_other_opcode_is_refused_by_name(opcode):
    code = opcode.code.encode("latin-1")
    assert (code in OPCODES) == (opcode.name in KNOWN.split())
    if code not in OPCODES and opcode.name != "STOP":
        message = f"the pickle opcode {code!r}, which torch.save does not write"
        for argument in (b"", b"os\nsystem\n", b"\1\0\0\0x", bytes(20)):
            with pytest.raises(CheckpointError) as caught:
                run_pickle(b"\x80\2(NN" + code + argument + b".")
            assert caught.value.found == message


def stack_global(module, name):
    return b"\x80\4" + b"".join(b"\x8c" + bytes([len(t)]) + t for t in (module, name)) + b"\x93"


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (b"builtins", b"getattr"),
        (b"builtins", b"eval"),
        (b"os", b"system"),
        (b"nt", b"system"),
        (b"collections", b"OrderedDict.fromkeys"),
        (b"collections", b"OrderedDict\0"),
        (b"torch", b"FloatStorage.__class__"),
        (b"torch", b"serialization.os.system"),
        (b"torch._utils", b"__builtins__"),
        (b"torch", b"__dict__"),
        (b"", b""),
        ("tоrch".encode(), b"FloatStorage"),  # its o is Cyrillic
        (b"torch\n", b"FloatStorage"),
    ],
)
def test_no_name_leads_to_anything_else(module, name):
    for pickled in (
        stack_global(module, name) + b")R.",
        b"\x80\2c" + module + b"\n" + name + b"\n.",
        stack_global(module, name) + b"}b.",
    ):
        with pytest.raises(CheckpointError, match=r"the name|takes what is not there"):
            run_pickle(pickled)


def test_a_pickle_that_refers_to_itself_is_harmless():
    """A list in itself, a dict in itself, and each of them as the state of an OrderedDict."""
    loop = b"\x80\2]q\0h\0a"
    assert run_pickle(loop + b".")[0][0] != []
    assert run_pickle(b"\x80\2}q\0X\1\0\0\0xh\0s.")["x"]["x"] is not None
    assert run_pickle(b"\x80\2ccollections\nOrderedDict\n)R" + loop[2:] + b"b.") == {}
    every = [[1, (2, None)], {"a": "b", 1: 2.5}, ("x", True, False, 2**40, -1)]
    for protocol in (2, 3, 4, 5):
        assert run_pickle(pickle.dumps(every, protocol)) == every


class Calls:
    """Pickled, it is a call of `name` with `arguments`."""

    def __init__(self, name, *arguments):
        self.name, self.arguments = name, arguments

    def __reduce__(self):
        return self.name, self.arguments


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        (os.system, ("touch {marker}",)),
        (eval, ("open('{marker}', 'w')",)),
        (exec, ("open('{marker}', 'w')",)),
        (open, ("{marker}", "w")),
        (getattr, (collections, "OrderedDict")),
        (__import__, ("os",)),
        (torch.load, ("{marker}",)),
        (torch._utils._rebuild_tensor, (1, 2, 3, 4)),
        (collections.deque, ()),
        (np.ndarray, ((2,),)),
    ],
)
def test_nothing_in_a_pickle_is_called(tmp_path, protocol, name, arguments):
    marker = tmp_path / "executed"
    arguments = [a.format(marker=marker) if isinstance(a, str) else "x" for a in arguments]
    for content in (Calls(name, *arguments), {"x": Calls(name, *arguments)}):
        (tmp_path / "model.pth").write_bytes(with_pickle(pickle.dumps(content, protocol)))
        message = refusal(tmp_path / "model.pth", read_tensors)
        assert message.removeprefix("tensor 'x': ").startswith("found the name '")
        assert "which no tensor needs" in message
    assert not marker.exists()


# ---- files that lie ------------------------------------------------------------------------------

READERS = {"gguf": partial(read_checkpoint, format="gguf")}
EVERY_LIE = LIES + TOKENIZER_LIES


def id_of(name, data, message):
    return f"{name}-{getattr(message, 'pattern', message)[:40]}"


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "data", "message"), EVERY_LIE, ids=[id_of(*lie) for lie in EVERY_LIE]
)
def test_a_file_that_lies_is_refused(name, data, message, tmp_path):
    target = TARGETS[name]
    file, *_ = target.made(tmp_path, target.inputs()[0])
    lying = data if isinstance(data, dict) else {file.name: data}
    for other, content in lying.items():
        (tmp_path / other).write_bytes(content.encode() if isinstance(content, str) else content)
    path, *_ = target.paths(tmp_path)
    with pytest.raises(target.refusal) as caught:
        READERS.get(name, target.read)(path)
    found = str(caught.value)
    check_message(found, tmp_path / next(iter(lying)))
    if isinstance(message, re.Pattern):
        assert message.search(found)
    else:
        assert message in found
        if name == "gguf" or message.startswith("tensor "):
            assert found.removeprefix(f"{file}: ").startswith(message)


def test_members_of_any_name_stay_inside_the_archive(tmp_path):
    """Nothing is ever written to a path that an archive names; what nobody refers to is nothing."""
    odd = [
        b"/etc/passwd",
        b"../../x",
        b"x/data/../0",
        b"C:\\x",
        b"x/link",
        b"\xff\xfe",
        b"a" * 5000,
    ]
    file = tmp_path / "model.pth"
    file.write_bytes(archive(state_dict() + [(name, b"harm", {}) for name in odd]))
    np.testing.assert_array_equal(read_tensors(file)["a"], np.arange(6))
    assert os.listdir(tmp_path) == ["model.pth"]
    for count in (0, 1, 3, 65534):
        file.write_bytes(archive(state_dict(), count=count))
        with pytest.raises(CheckpointError, match="found "):
            read_tensors(file)


# ---- memory --------------------------------------------------------------------------------------


def test_large_lies_take_little_memory(tmp_path):
    """Each file says that it has much more than it has; the process may have 1 GB in all."""
    lies = {
        "layers.json": json.dumps(seeds.HUGGINGFACE | {"num_hidden_layers": 10**9}).encode(),
        "brackets.json": b'{"a": ' + b"[" * (8 << 20),
        "lists.json": b'{"a": [' + b"[]," * (2 << 20) + b"0]}",
        "header.safetensors": struct.pack("<Q", 90 << 20) + b'{"a": ' + b"[" * (90 << 20),
        "shape.safetensors": seeds.with_length(
            json.dumps(
                {"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}
            ).encode()
        ),
        "sizes.bin": struct.pack("<7i", *[2**30] * 7) + bytes(1000),
        "tok.bin": struct.pack("<ifi", 2**31 - 1, 0.0, 2**31 - 1) + bytes(1000),
    }
    for name, data in lies.items():
        (tmp_path / name).write_bytes(data)
    printed = run_python(
        f"""
        import resource
        from pathlib import Path
        from simdformer.checkpoints import files, read_checkpoint, safetensors_file
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
        readers = {{
            "json": files.read_object, "safetensors": safetensors_file.read_tensors,
            "bin": read_checkpoint, "tok": sf.tokenizer.load,
        }}
        for file in sorted(Path({str(tmp_path)!r}).iterdir()):
            reader = readers["tok" if file.stem == "tok" else file.suffix[1:]]
            try:
                reader(file)
                print(file.name, "read")
            except sf.CheckpointError as error:
                assert str(error).startswith(str(file)), error
                print(file.name, "refused")
        """,
        OPENBLAS_NUM_THREADS="1",
        SIMDFORMER_NUM_THREADS="1",
    )
    assert printed.splitlines() == [
        f"{name} {'read' if name in ('layers.json', 'lists.json') else 'refused'}"
        for name in sorted(lies)
    ]
