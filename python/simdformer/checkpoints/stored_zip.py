"""Where the members of an uncompressed zip archive lie in its bytes: the container of `.pth` files.

Only the directory at the end of the archive is read, in zip's own words: end record (or its 64-bit
sister), central directory, one local header a member. Nothing is copied and nothing allocated but
one entry for each member.
"""

import struct
import zlib
from dataclasses import dataclass
from typing import Any

from simdformer.checkpoints.error import CheckpointError
from simdformer.checkpoints.files import InputFile

__all__ = ["Member", "locate_members", "read_member"]

MAX_MEMBERS = 1 << 16  # the largest published shard has about 1200
END = struct.Struct("<4s4H2IH")
END64_LOCATOR = struct.Struct("<4sIQI")
END64 = struct.Struct("<4sQ2H2I4Q")
ENTRY = struct.Struct("<4s6H3I5H2I")
LOCAL = struct.Struct("<4s5H3I2H")
EXTRA64 = 1
STORED = 0
ENCRYPTED = 1
FULL_16, FULL_32 = 0xFFFF, 0xFFFFFFFF  # the number did not fit, its 64-bit sister has it


@dataclass(frozen=True, slots=True)
class Member:
    """Where the bytes of a member lie, and their checksum as the archive has it."""

    start: int
    size: int
    crc: int


def locate_members(file: InputFile) -> dict[str, Member]:
    """Every member by name. CheckpointError unless all are stored and inside the file."""
    if file.read(0, 4) != b"PK\x03\x04":
        raise CheckpointError("no zip archive (torch.save has written one since PyTorch 1.6)")
    count, size, offset, limit = directory_of(file)
    if count > MAX_MEMBERS:
        raise CheckpointError(f"a zip archive of {count} members")
    if offset + size > limit or count * ENTRY.size > size:
        raise CheckpointError("a damaged zip archive: its directory does not lie inside the file")
    directory = file.read(offset, size)
    members: dict[str, Member] = {}
    at = 0
    for _ in range(count):
        name, member, at = read_entry(file, directory, at, offset)
        if name in members:
            raise CheckpointError(f"a zip archive with two members {name[:80]!r}")
        members[name] = member
    return members


def directory_of(file: InputFile) -> tuple[int, int, int, int]:
    """How many members, size and offset of the central directory, and where it must have ended."""
    tail_start = max(0, file.size - END.size - FULL_16)
    tail = file.read(tail_start, file.size)
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or at + END.size > len(tail):
        raise CheckpointError("a zip archive without its end; is the download complete?")
    _, disk, first_disk, _, count, size, offset, comment = END.unpack_from(tail, at)
    if at + END.size + comment != len(tail):
        raise CheckpointError("a zip archive with bytes after its end")
    end = tail_start + at
    if count == FULL_16 or FULL_32 in (size, offset):
        locator = unpack(END64_LOCATOR, b"PK\x06\x07", file, end - END64_LOCATOR.size)
        end = locator[2]
        _, _, _, _, disk, first_disk, _, count, size, offset = unpack(
            END64, b"PK\x06\x06", file, end
        )
    if disk or first_disk:
        raise CheckpointError("a zip archive of several volumes")
    return count, size, offset, end


def read_entry(file: InputFile, directory: bytes, at: int, limit: int) -> tuple[str, Member, int]:
    """One entry of the directory: name, member, where the next entry begins."""
    if at + ENTRY.size > len(directory):
        raise CheckpointError("a damaged zip archive: its directory ends too early")
    fields = ENTRY.unpack_from(directory, at)
    flags, method, crc, packed, size = *fields[3:5], *fields[7:10]
    name_len, extra_len, comment_len, offset = *fields[10:13], fields[16]
    at += ENTRY.size
    end = at + name_len + extra_len + comment_len
    if fields[0] != b"PK\x01\x02" or end > len(directory):
        raise CheckpointError(
            "a damaged zip archive: its directory has no entry where one should be"
        )
    raw_name = directory[at : at + name_len]
    name = raw_name.decode("utf-8", "replace")
    extra = directory[at + name_len : at + name_len + extra_len]
    size, packed, offset = widened(extra, [size, packed, offset])
    if flags & ENCRYPTED or method != STORED or packed != size:
        raise CheckpointError(
            f"a compressed or encrypted member {name[:80]!r}; torch.save writes neither"
        )
    local = unpack(LOCAL, b"PK\x03\x04", file, offset)
    start = offset + LOCAL.size + local[9] + local[10]
    if file.read(offset + LOCAL.size, local[9]) != raw_name:
        raise CheckpointError(
            f"a damaged zip archive: the member {name[:80]!r} has another name inside"
        )
    if start + size > limit:
        raise CheckpointError(
            f"a member {name[:80]!r} that reaches past the end of the archive's data"
        )
    return name, Member(start, size, crc), end


def read_member(file: InputFile, member: Member, most: int) -> bytes:
    """The bytes of a small member, checked against their sum. (Those of tensors are not: a sum
    takes longer than to read them.)"""
    if member.size > most:
        raise CheckpointError(f"a member of {member.size} bytes", f"at most {most}")
    data = file.read(member.start, member.size)
    if zlib.crc32(data) != member.crc:
        raise CheckpointError(
            f"the checksum {zlib.crc32(data):08x} at byte {member.start}",
            f"{member.crc:08x}, which the archive has of it",
            advice="the file is damaged, download it again",
        )
    return data


def widened(extra: bytes, numbers: list[int]) -> list[int]:
    """Those numbers that did not fit into 32 bits, from the extra field that has them in 64."""
    at = 0
    while FULL_32 in numbers and at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        body, at = extra[at + 4 : at + 4 + length], at + 4 + length
        if kind == EXTRA64:
            for index, number in enumerate(numbers):
                if number == FULL_32 and len(body) >= 8:
                    numbers[index], body = int.from_bytes(body[:8], "little"), body[8:]
            break
    return numbers


def unpack(record: struct.Struct, signature: bytes, file: InputFile, at: int) -> tuple[Any, ...]:
    """The fields of the record at byte `at`, the signature first."""
    if not 0 <= at <= file.size - record.size:
        raise CheckpointError("a damaged zip archive: a record lies outside the file")
    fields = record.unpack(file.read(at, record.size))
    if fields[0] != signature:
        raise CheckpointError("a damaged zip archive: a record is not where it should be")
    return fields
