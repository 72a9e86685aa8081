"""Files that are not what their names say, change while they are read, or ask for more than there
is: an exception that names the file, within bounded time and memory."""

import json
import os
import pickle
import pickletools
import struct
import zlib

import numpy as np
import pytest

import seeds
import simdformer as sf
from checkpoints import refusal
from simdformer.checkpoints import CheckpointError, read_checkpoint
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

REGULAR = "needed is a regular file"
INSTEAD = {  # what it is, how it is made, what is said of it
    "directory": (lambda file: file.mkdir(), f"found a directory; {REGULAR}"),
    "pipe": (lambda file: os.mkfifo(file), f"found a pipe; {REGULAR}"),
    "empty": (lambda file: file.touch(), "found an empty file; download or export it again"),
    "endless": (lambda file: file.touch() or os.truncate(file, 1 << 40), ""),
    "device": (lambda file: file.symlink_to("/dev/zero"), f"found a device; {REGULAR}"),
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
            assert f"{tmp_path / name}: found {1 << 40} bytes; needed is at most" in str(
                caught.value
            )


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


# ---- zip archives --------------------------------------------------------------------------------


def archive(members, *, comment=b"", count=None):
    """A zip archive out of (name, data, changes): changes are of the fields of the directory."""
    body, directory = b"", b""
    for name, data, changes in members:
        local = {"flags": 0, "method": 0, "crc": zlib.crc32(data), "size": len(data), "extra": b""}
        entry = local | {"packed": len(data), "offset": len(body), "extra": b""} | changes
        inner = local | {key[6:]: value for key, value in changes.items() if key[:6] == "local_"}
        inner_name = inner.get("name", name)
        body += struct.pack("<4s5H3I2H", b"PK\3\4", 20, inner["flags"], inner["method"], 0, 0,
                            inner["crc"], len(data), inner["size"], len(inner_name),
                            inner.get("extra_size", 0)) + inner_name + data  # fmt: skip
        directory += struct.pack("<4s6H3I5H2I", b"PK\1\2", 20, 20, entry["flags"], entry["method"],
                                 0, 0, entry["crc"], entry["packed"], entry["size"], len(name),
                                 len(entry["extra"]), 0, 0, 0, 0, entry["offset"])  # fmt: skip
        directory += name + entry["extra"]
    count = len(members) if count is None else count
    end = struct.pack(
        "<4s4H2IH", b"PK\5\6", 0, 0, count, count, len(directory), len(body), len(comment)
    )
    return body + directory + end + comment


def state_dict(**changes):
    """The members of a small state dict; `changes` are of the member of its numbers."""
    tensors = {"a": np.arange(6, dtype=np.float32)}
    return [
        (b"x/data.pkl", seeds.pickle_bytes(tensors), {}),
        (b"x/data/0", tensors["a"].tobytes(), changes),
    ]


BIG = b"\1\0\x08\0" + struct.pack("<Q", 2**63)  # the offset in 64 bits
ARCHIVES = {
    "a name twice": (state_dict() + state_dict()[1:], "two members 'x/data/0'"),
    "compressed": (state_dict(method=8), "a compressed or encrypted member 'x/data/0'"),
    "encrypted": (state_dict(flags=1), "a compressed or encrypted member 'x/data/0'"),
    "sizes that differ": (state_dict(packed=12), "a compressed or encrypted member"),
    "a bomb": (state_dict(size=2**31, packed=2**31), "reaches past the end"),
    "beyond the file": (state_dict(offset=2**31), "a record lies outside the file"),
    "before the file": (state_dict(offset=2**32 - 1, extra=BIG), "a record lies outside the file"),
    "in the directory": (state_dict(offset=200), "a record is not where it should be"),
    "64 bits missing": (state_dict(offset=2**32 - 1), "a record lies outside the file"),
    "64 bits cut": (state_dict(offset=2**32 - 1, extra=b"\1\0\xff\xff"), "outside the file"),
    "another name inside": (state_dict(local_name=b"x/data/1"), "has another name inside"),
    "a long extra field": (state_dict(local_extra_size=65535), "reaches past the end"),
    "over another member": (state_dict(offset=0), "has another name inside"),
    "other numbers": (state_dict(size=20, packed=20), "tensor 'a': found 20 bytes"),
    "no root": ([(b"/data.pkl", b"", {})], "a pickle that ends too early"),
    "two roots": ([(b"x/data.pkl", b"", {}), (b"y/data.pkl", b"", {})], "2 members NAME/data.pkl"),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_an_archive_that_lies_is_refused(tmp_path, name):
    members, message = ARCHIVES[name]
    file = tmp_path / "model.pth"
    file.write_bytes(archive(members))
    found = refusal(file, read_tensors)
    assert found.startswith(("found ", "tensor "))
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
