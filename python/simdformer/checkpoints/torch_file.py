"""Reader of PyTorch's `.pth` files, without PyTorch and without running anything that is in them.

A `.pth` file is a zip archive of uncompressed members: `NAME/data.pkl`, a pickle that describes the
tensors, and `NAME/data/0`, `NAME/data/1`, ..., their bytes, which are read
when somebody asks for a tensor.
"""

from pathlib import Path
from typing import Any

import numpy as np

from simdformer.checkpoints.error import CheckpointError, in_file
from simdformer.checkpoints.files import InputFile
from simdformer.checkpoints.pickle_machine import TensorView, run_pickle
from simdformer.checkpoints.stored_tensor import StoredTensor
from simdformer.checkpoints.stored_zip import Member, locate_members, read_member

__all__ = ["read_tensors"]

MAX_PICKLE = 4 << 20  # bytes; a state dict of a thousand tensors needs about 150 kB
MAX_SHARING = 4  # how often a byte of the file may stand in tensors, on average
NEEDED = "a state dict of tensors as torch.save writes it"


def read_tensors(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a state dict by name, in the file's dtypes.

    CheckpointError when it holds anything else, or is damaged.
    """
    file = InputFile(path)
    with in_file(path, needed=NEEDED):
        return tensors_of(file)


def tensors_of(file: InputFile) -> dict[str, StoredTensor]:
    members = locate_members(file)
    root = root_of(members)
    check_byte_order(file, members, root)
    described = run_pickle(read_member(file, members[f"{root}/data.pkl"], MAX_PICKLE))
    if type(described) is not dict:
        raise CheckpointError("something other than a dict of tensors")
    tensors: dict[str, StoredTensor] = {}
    total = 0
    for name, view in described.items():
        if type(name) is not str or not isinstance(view, TensorView):
            raise CheckpointError("something other than a tensor", tensor=str(name))
        tensors[name] = tensor = stored_tensor(file, members, root, name, view)
        total += tensor.span
    if not tensors:
        raise CheckpointError("a state dict without tensors", "at least one tensor")
    # Tied matrices share their bytes, and so do the parts of one that was cut along its columns;
    # thousands of tensors over the same bytes would be a bomb.
    if total > MAX_SHARING * file.size:
        raise CheckpointError(f"tensors of {total} bytes in a file of {file.size}")
    return tensors


def root_of(members: dict[str, Member]) -> str:
    """The folder inside the archive that everything lies in."""
    found = [name for name in members if name.count("/") == 1 and name.endswith("/data.pkl")]
    if len(found) != 1:
        raise CheckpointError(f"a zip archive with {len(found)} members NAME/data.pkl")
    return found[0].removesuffix("/data.pkl")


def check_byte_order(file: InputFile, members: dict[str, Member], root: str) -> None:
    member = members.get(f"{root}/byteorder")
    if member is not None and read_member(file, member, 16) != b"little":
        raise CheckpointError("tensors that are not little-endian")


def stored_tensor(
    file: InputFile, members: dict[str, Member], root: str, name: str, view: TensorView
) -> StoredTensor:
    """Where the tensor lies. The pickle machine has checked it against its storage."""
    dtype: np.dtype[Any] = view.storage.dtype
    needed = view.storage.count * dtype.itemsize
    member = members.get(f"{root}/data/{view.storage.key}")
    if member is None:
        raise CheckpointError("no bytes in the archive", f"{needed} bytes", tensor=name)
    if member.size != needed:
        raise CheckpointError(
            f"{member.size} bytes",
            f"{needed} for the {view.storage.count} elements of its storage",
            tensor=name,
        )
    offset = member.start + view.offset * dtype.itemsize
    return StoredTensor(file, name, offset, view.shape, dtype, view.strides)
