"""How an input becomes another one: bytes changed anywhere, JSON and pickles along their structure.

Every mutation is a function of (data, random); the same seed gives the same input.
"""

import copy
import json

LONGEST = 40_000  # bytes of an input that grows from mutation to mutation
BYTES = bytes([0, 1, 2, 10, 32, 34, 44, 45, 46, 48, 57, 91, 93, 123, 125, 127, 128, 192, 255])
NUMBERS = [0, 1, 2, 127, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, -1]
ODD = [
    None, True, False, 0, 1, -1, 2, 2**31, 2**32, 2**53 + 1, 2**63, 2**64, 10**18, 10**29, 0.5,
    -0.0, 1e-308, 1e308, "", "x", "a", "é", "\U0001f600", "a" * 300, "\0", "..", "/etc/passwd",
    "F32", "BF16", [], {}, [0], [[]], [None], {"a": 1}, [0, 8], [2**62, 4], "(a|a)*$", "\n",
]  # fmt: skip
OPCODES = [
    b"N", b"}", b"]", b")", b"(", b"t", b"u", b"s", b"e", b"a", b"R", b"b", b"Q", b".", b"\x85",
    b"\x86", b"\x87", b"\x88", b"\x93", b"\x94", b"K\0", b"K\1", b"M\xff\xff", b"J\xff\xff\xff\xff",
    b"\x8a\x08" + bytes(7) + b"\x7f", b"\x8a\x08" + b"\xff" * 8, b"G" + bytes(8), b"q\0", b"h\0",
    b"X\1\0\0\0x", b"\x8c\1y", b"X\xff\xff\xff\xff", b"ccollections\nOrderedDict\n",
    b"ctorch._utils\n_rebuild_tensor_v2\n", b"ctorch._utils\n_rebuild_parameter\n",
    b"ctorch\nFloatStorage\n", b"cos\nsystem\n", b"cbuiltins\ngetattr\n", b"o", b"i", b"\x81",
    b"\x92", b"P", b"\x82\1", b"\x80\2", b"\x95" + bytes(8), b"0", b"2", b"1",
]  # fmt: skip


def mutate_bytes(data, random):
    """A few local changes: bytes, numbers of every width, pieces taken out, doubled, moved."""
    data = bytearray(data or b"\0")
    for _ in range(random.choice((1, 1, 2, 4, 16))):
        at = random.randrange(len(data) + 1)
        length = min(random.choice((1, 1, 2, 4, 8, 30)), len(data))
        kind = random.randrange(7)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << random.randrange(8)
        elif kind == 1:
            data[at : at + 1] = bytes([random.choice(BYTES)])
        elif kind == 2:
            width = random.choice((1, 2, 4, 8))
            value = (random.choice(NUMBERS) + random.randrange(-2, 3)) % (1 << 8 * width)
            data[at : at + width] = value.to_bytes(width, random.choice(("little", "big")))
        elif kind == 3:
            del data[at : at + length]
        elif kind == 4:
            data[at:at] = data[at : at + length] * random.choice((1, 2, 50))
        elif kind == 5:
            start = random.randrange(len(data) + 1)
            data[at : at + length] = data[start : start + length]
        else:
            data[at:at] = bytes(random.randrange(256) for _ in range(length))
    return bytes(data[:LONGEST])


def mutate_json(data, random):
    """One value, key or element of the document changed; sometimes bytes, so that it is none."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict | list) or not document or random.random() < 0.1:
        return mutate_bytes(data, random)
    for _ in range(random.choice((1, 1, 2, 3))):
        if document:
            change_somewhere(document, random)
    text = json.dumps(document, ensure_ascii=random.random() < 0.5).encode("utf-8", "replace")
    return text if len(text) < LONGEST else mutate_bytes(data, random)


def mutate_lines(data, random):
    """One line of JSON lines changed, taken out or doubled."""
    lines = data.split(b"\n")
    at = random.randrange(len(lines))
    lines[at : at + 1] = random.choice(([mutate_json(lines[at], random)], [], [lines[at]] * 2))
    return b"\n".join(lines)


def change_somewhere(document, random):
    places = []
    waiting = [document]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict | list) and node:
            keys = list(node) if isinstance(node, dict) else range(len(node))
            places += [(node, key) for key in keys]
            waiting += [node[key] for key in keys]
    # Files hold thousands of tokens and a few settings: half of the time one of those few.
    few = [place for place in places if len(place[0]) < 40]
    node, key = random.choice(few if few and random.random() < 0.8 else places)
    kind = random.randrange(8)
    if kind < 4:
        node[key] = near(node[key], random) if kind < 2 else copy.deepcopy(random.choice(ODD))
    elif kind == 4:
        del node[key]
    elif kind == 5:  # another part of the document
        other, name = random.choice(places)
        node[key] = copy.deepcopy(other[name])
    elif isinstance(node, dict):
        node[str(random.choice(ODD))[:20] if kind == 6 else f"{key}s"] = node[key]
    else:
        node[key:key] = [copy.deepcopy(node[key])] * random.choice((1, 2, 60))


def near(value, random):
    """A value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return random.choice((value + 1, value - 1, -value, value * 2, value // 2, 10**9, 2**31))
    if isinstance(value, float):
        return random.choice((value * 2, -value, 0.0, int(value) if abs(value) < 1e15 else 1, 1e30))
    if isinstance(value, str):
        return mutate_bytes(value.encode(), random).decode("utf-8", "replace")
    return copy.deepcopy(random.choice(ODD))


def mutate_pickle(data, random):
    """An opcode put in, in another's place, or bytes changed."""
    if random.random() < 0.4:
        return mutate_bytes(data, random)
    at = random.randrange(len(data) + 1)
    return data[:at] + random.choice(OPCODES) * random.choice((1, 1, 1, 3, 80)) + data[at:]


def mutate_protobuf(data, random):
    """A field of the message taken out, doubled, or given another value; its parts as well."""
    fields = split_fields(data)
    if not fields or random.random() < 0.2:
        return mutate_bytes(data, random)
    at = random.randrange(len(fields))
    number, kind, value = fields[at]
    action = random.randrange(5)
    if action == 0:
        del fields[at]
    elif action == 1:
        fields.insert(random.randrange(len(fields) + 1), fields[at])
    elif action == 2:
        fields[at] = (random.choice((number, number + 1, 1, 41, 2**28)), kind, value)
    elif kind == 2:
        inner = mutate_protobuf if action == 3 else mutate_bytes
        fields[at] = (number, kind, inner(value, random))
    elif kind == 0:
        fields[at] = (number, kind, random.choice(NUMBERS) % 2**64)
    else:
        fields[at] = (number, kind, mutate_bytes(value, random)[: len(value)].ljust(len(value)))
    return b"".join(map(join_field, fields))


def split_fields(data):
    """(number, wire type, value) of every field; None when it is no message."""
    fields, at = [], 0
    try:
        while at < len(data):
            key, at = read_varint(data, at)
            kind = key & 7
            if kind == 0:
                value, at = read_varint(data, at)
            else:
                size = {1: 8, 5: 4}.get(kind)
                if size is None:
                    size, at = read_varint(data, at) if kind == 2 else (len(data) + 1, at)
                value, at = data[at : at + size], at + size
            if at > len(data):
                return None
            fields.append((key >> 3, kind, value))
    except IndexError:
        return None
    return fields


def read_varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return value, at


def write_varint(value):
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def join_field(field):
    number, kind, value = field
    body = write_varint(value) if kind == 0 else value
    length = write_varint(len(value)) if kind == 2 else b""
    return write_varint(number << 3 | kind) + length + body
