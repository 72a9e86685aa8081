"""Reader of PyTorch's `.pth` files, without PyTorch and without running anything that is in them.

A `.pth` file is a zip archive of uncompressed members: `NAME/data.pkl`, a pickle that describes the
tensors, and `NAME/data/0`, `NAME/data/1`, ..., their bytes, which are read
when somebody asks for a tensor.
"""

from pathlib import Path
from typing import Any

import numpy as np

from simdformer.models.checkpoint import CheckpointError
from simdformer.models.input_file import InputFile, StoredTensor
from simdformer.models.pickle_machine import TensorView, run_pickle
from simdformer.models.stored_zip import Refused, locate_members

__all__ = ["read_tensors"]

MAX_PICKLE = 4 << 20  # bytes; a state dict of a thousand tensors needs about 150 kB
MAX_SHARING = 4  # how often a byte of the file may stand in tensors, on average
NEEDED = "a state dict of tensors as torch.save writes it"


def read_tensors(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a state dict by name, in the file's dtypes.

    CheckpointError when it holds anything else, or is damaged.
    """
    file = InputFile(path)
    try:
        return tensors_of(file)
    except Refused as found:
        raise CheckpointError(
            f"{path}: found {found}; needed is {NEEDED}",
            file=path,
            found=str(found),
            needed=NEEDED,
        ) from None


def tensors_of(file: InputFile) -> dict[str, StoredTensor]:
    members = locate_members(file)
    root = root_of(members)
    check_byte_order(file, members, root)
    described = run_pickle(member_bytes(file, members[f"{root}/data.pkl"], MAX_PICKLE))
    if type(described) is not dict:
        raise Refused("something that is no dict of tensors")
    tensors: dict[str, StoredTensor] = {}
    total = 0
    for name, view in described.items():
        if type(name) is not str or not isinstance(view, TensorView):
            raise Refused(f"an entry {str(name)[:80]!r} that is no tensor")
        tensors[name] = tensor = stored_tensor(file, members, root, name, view)
        total += tensor.span
    # Tied matrices share their bytes, and so do the parts of one that was cut along its columns;
    # thousands of tensors over the same bytes would be a bomb.
    if total > MAX_SHARING * file.size:
        raise Refused(f"tensors of {total} bytes in a file of {file.size}")
    return tensors


def root_of(members: dict[str, tuple[int, int]]) -> str:
    """The folder inside the archive that everything lies in."""
    found = [name for name in members if name.count("/") == 1 and name.endswith("/data.pkl")]
    if len(found) != 1:
        raise Refused(f"a zip archive with {len(found)} members NAME/data.pkl")
    return found[0].removesuffix("/data.pkl")


def check_byte_order(file: InputFile, members: dict[str, tuple[int, int]], root: str) -> None:
    member = members.get(f"{root}/byteorder")
    if member is not None and member_bytes(file, member, 16) != b"little":
        raise Refused("tensors that are not little-endian")


def member_bytes(file: InputFile, member: tuple[int, int], limit: int) -> bytes:
    start, size = member
    if size > limit:
        raise Refused(f"an index of {size} bytes")
    return file.read(start, size)


def stored_tensor(
    file: InputFile, members: dict[str, tuple[int, int]], root: str, name: str, view: TensorView
) -> StoredTensor:
    """Where the tensor lies. The pickle machine has checked it against its storage."""
    member = members.get(f"{root}/data/{view.storage.key}")
    if member is None:
        raise Refused(f"a tensor {name[:80]!r} whose bytes are missing")
    start, size = member
    dtype: np.dtype[Any] = view.storage.dtype
    if size != view.storage.count * dtype.itemsize:
        raise Refused(
            f"{size} bytes for the storage of {name[:80]!r}, whose {view.storage.count} elements "
            f"need {view.storage.count * dtype.itemsize}"
        )
    offset = start + view.offset * dtype.itemsize
    return StoredTensor(file, offset, view.shape, dtype, view.strides)
