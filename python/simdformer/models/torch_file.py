"""Reader of PyTorch's `.pth` files, without PyTorch and without running anything that is in them.

A `.pth` file is a zip archive of uncompressed members: `NAME/data.pkl`, a pickle that describes the
tensors, and `NAME/data/0`, `NAME/data/1`, ..., their bytes, which are memory-mapped.
"""

from pathlib import Path
from typing import Any

import numpy as np

from simdformer.models.checkpoint import CheckpointError, map_file
from simdformer.models.pickle_machine import TensorView, run_pickle
from simdformer.models.stored_zip import Bytes, Refused, locate_members
from simdformer.types import Array

__all__ = ["read_tensors"]

MAX_PICKLE = 4 << 20  # bytes; a state dict of a thousand tensors needs about 150 kB
NEEDED = "a state dict of tensors as torch.save writes it"


def read_tensors(path: Path) -> dict[str, Array]:
    """The tensors of a state dict by name, in the file's dtypes: read-only views of the file.

    CheckpointError when it holds anything else, or is damaged.
    """
    data = map_file(path)
    try:
        return views_of(data)
    except Refused as found:
        raise CheckpointError(
            f"{path}: found {found}; needed is {NEEDED}",
            file=path,
            found=str(found),
            needed=NEEDED,
        ) from None


def views_of(data: Bytes) -> dict[str, Array]:
    members = locate_members(data)
    root = root_of(members)
    check_byte_order(data, members, root)
    described = run_pickle(member_bytes(data, members[f"{root}/data.pkl"], MAX_PICKLE))
    if type(described) is not dict:
        raise Refused("something that is no dict of tensors")
    tensors: dict[str, Array] = {}
    total = 0
    for name, view in described.items():
        if type(name) is not str or not isinstance(view, TensorView):
            raise Refused(f"an entry {str(name)[:80]!r} that is no tensor")
        tensors[name] = tensor = array_of(data, members, root, name, view)
        total += tensor.nbytes
    # Tied matrices share their bytes; thousands of tensors over the same bytes would be a bomb.
    if total > 2 * data.size:
        raise Refused(f"tensors of {total} bytes in a file of {data.size}")
    return tensors


def root_of(members: dict[str, tuple[int, int]]) -> str:
    """The folder inside the archive that everything lies in."""
    found = [name for name in members if name.count("/") == 1 and name.endswith("/data.pkl")]
    if len(found) != 1:
        raise Refused(f"a zip archive with {len(found)} members NAME/data.pkl")
    return found[0].removesuffix("/data.pkl")


def check_byte_order(data: Bytes, members: dict[str, tuple[int, int]], root: str) -> None:
    member = members.get(f"{root}/byteorder")
    if member is not None and member_bytes(data, member, 16) != b"little":
        raise Refused("tensors that are not little-endian")


def member_bytes(data: Bytes, member: tuple[int, int], limit: int) -> bytes:
    start, size = member
    if size > limit:
        raise Refused(f"an index of {size} bytes")
    return data[start : start + size].tobytes()


def array_of(
    data: Bytes, members: dict[str, tuple[int, int]], root: str, name: str, view: TensorView
) -> Array:
    """The tensor as a view of the file. The pickle machine has checked it against its storage."""
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
    return np.ndarray(
        view.shape,
        dtype,
        buffer=data[start : start + size],
        offset=view.offset * dtype.itemsize,
        strides=tuple(stride * dtype.itemsize for stride in view.strides),
    )
