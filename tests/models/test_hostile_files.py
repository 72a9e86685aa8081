"""Files that are not what their names say, change while they are read, or ask for more than there
is: an exception that names the file, within bounded time and memory."""

import collections
import json
import os
import pickle
import pickletools
import struct
from functools import partial

import numpy as np
import pytest
import torch

import seeds
import simdformer as sf
from checkpoints import refusal
from lies import LIES, archive, state_dict, with_pickle
from simdformer.checkpoints import CheckpointError, read_checkpoint, safetensors_file
from simdformer.checkpoints.files import InputFile
from simdformer.checkpoints.pickle_machine import OPCODES, run_pickle
from simdformer.checkpoints.torch_file import read_tensors
from subprocesses import run_python

# ---- files that change ---------------------------------------------------------------------------


def checkpoint_files():
    """Format -> the files of a small checkpoint, the weights last."""
    config, params = seeds.dumped(seeds.HUGGINGFACE, seeds.META)
    weights = seeds.named_weights("huggingface")
    pth = seeds.pth_bytes(seeds.pickle_bytes(weights), weights)
    return {
        "huggingface": {"config.json": config} | seeds.huggingface_files(),
        "minimind": {"config.json": config, "model.pth": pth},
        "meta": {"params.json": params} | seeds.meta_files(),
        "gguf": {"model.gguf": seeds.gguf_seeds()[0]},
        "llama2.c": {"model.bin": seeds.llama2c_seeds()[0]},
    }


@pytest.fixture(params=checkpoint_files())
def checkpoint(request, tmp_path):
    """A folder with a small checkpoint, and the file of its weights."""
    files = checkpoint_files()[request.param]
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    assert read_checkpoint(tmp_path).format.name == request.param
    return tmp_path, tmp_path / [*files][-1]


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
TOKENIZERS = {
    "tokenizer.json": lambda: seeds.tokenizer_jsons()[0],
    "tokenizer.model": lambda: seeds.tiktoken_seed()[0],
    "vocab.json": lambda: seeds.merges_files()["vocab.json"],
    "tok300.bin": lambda: seeds.llama2c_tokenizer_seed()[0],
}


@pytest.mark.parametrize("kind", INSTEAD)
def test_only_regular_files_with_something_inside_are_read(checkpoint, kind):
    folder, _ = checkpoint
    for file in sorted(folder.iterdir()):
        data = file.read_bytes()
        file.unlink()
        make, message = INSTEAD[kind]
        make(file)
        with pytest.raises((CheckpointError, OSError)) as caught:
            read_checkpoint(folder)
        assert str(folder) in str(caught.value)
        assert message in str(caught.value)
        file.rmdir() if kind == "directory" else file.unlink()
        file.write_bytes(data)


@pytest.mark.parametrize("kind", INSTEAD)
@pytest.mark.parametrize("name", TOKENIZERS)
def test_only_regular_files_are_tokenizers(tmp_path, name, kind):
    if name == "vocab.json":
        for other, data in seeds.vocab_files().items():
            (tmp_path / other).write_bytes(data)
    make, message = INSTEAD[kind]
    make(tmp_path / name)
    for path in (tmp_path, tmp_path / name):
        with pytest.raises((CheckpointError, OSError)) as caught:
            sf.tokenizer.load(path)
        assert str(tmp_path) in str(caught.value)
        inside = kind == "directory" and path != tmp_path  # a folder without a tokenizer
        assert message in str(caught.value) or inside
        if kind == "endless":
            assert f"{tmp_path / name}: found {1 << 40} bytes, needs at most" in str(caught.value)


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

READERS = {
    "safetensors": safetensors_file.read_tensors,
    "pth": read_tensors,
    "gguf": partial(read_checkpoint, format="gguf"),
}


@pytest.mark.parametrize(("suffix", "data", "message"), LIES, ids=[lie[2][:40] for lie in LIES])
def test_a_file_that_lies_is_refused(suffix, data, message, tmp_path):
    file = tmp_path / f"model.{suffix}"
    file.write_bytes(data)
    found = refusal(file, READERS[suffix])
    if suffix == "gguf" or message.startswith("tensor "):
        assert found.startswith(message)
    assert message in found


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
