"""Files of tokenizers that lie, each with what is said of it (a regular expression), by the target
of fuzz/targets.py that reads it. Several files stand by their names, the one that lies first."""

import base64
import json
import re
import struct

import tokenizers

import gguf_files
import seeds
from checkpoints import tiny_tokenizer, tokenizer_bytes
from gguf_files import ARRAY, STRING, key_bytes, tokenizer_keys
from simdformer.text.vocab_merges import BYTE_OF_CHARACTER

# ---- tiktoken's format ---------------------------------------------------------------------------


def token_line(token, rank):
    return base64.b64encode(token) + b" %d\n" % rank


BYTES = [token_line(bytes([byte]), byte) for byte in range(256)]
MODEL = b"".join(BYTES) + token_line(b"hi", 256)
TIKTOKEN = [
    (b"", "found an empty file"),
    (MODEL[:-3], r"rank 2 in line 257, needs 256"),
    (MODEL[:-5], r"found b'aGk=' in line 257"),
    (MODEL[:-7], r"found b'aG' in line 257"),
    (
        MODEL[: len(MODEL) // 2].rpartition(b"\n")[0],
        r"no tokens for 12\d of the 256 single bytes",
    ),
    (MODEL.replace(b"aGk=", b"aG!="), "found b'aG!= 256' in line 257"),
    (MODEL.replace(b"aGk=", b"aGkaa"), r"a token in line 257 that is not base64 \("),
    (MODEL.replace(b"aGk= 256", b"aGk= 0256"), "in line 257, needs"),
    (MODEL.replace(b"aGk= 256", b"aGk= -256"), "in line 257, needs"),
    (MODEL.replace(b"aGk= 256", b"aGk=  256"), "in line 257, needs"),
    (MODEL.replace(b"aGk= 256", b"aGk= 256\r"), "in line 257, needs"),
    (MODEL.replace(b"aGk= 256", b"aGk= " + b"9" * 99), r"found b'.{40}\.\.\.' in line 257"),
    (MODEL.replace(b"aGk= 256", b"aGk= 255"), "rank 255 in line 257, needs 256"),
    (MODEL.replace(b"aGk= 256", b"aGk= 258"), "rank 258 in line 257, needs 256"),
    (
        MODEL + token_line(b"hi", 257),
        "the token b'hi' in line 258 and in line 257, needs each token once",
    ),
    (MODEL + b" 257\n", "in line 258, needs"),
    (MODEL + b"\n", "found b'' in line 258"),
    (
        MODEL + token_line(b"x" * 1025, 257),
        "a token of 1025 bytes in line 258, needs at most 1024",
    ),
    (
        b"".join(BYTES).replace(BYTES[65], token_line(b"hi", 65)),
        "no tokens for 1 of the 256 single bytes, the first is byte 65",
    ),
    (b"\xff\xfe" * 1000, r"found b'.*\.\.\.' in line 1"),
    (b"a\n" * ((1 << 20) + 1), "found 1048577 lines, needs at most 1048576"),
]

# ---- tokenizer.json ---


def small_json(**parts):
    """A byte-level tokenizer.json of 256 bytes, "hi" and <s>."""
    characters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: id for id, token in enumerate([*characters, "hi", "<s>"])}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[("h", "i")]))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(["<s>", "</s>"])
    return json.loads(made.to_str()) | parts


BOS_IN_FRONT = {
    "type": "TemplateProcessing",
    "single": [
        {"SpecialToken": {"id": "<s>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "</s>", "type_id": 0}},
    ],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {
        "<s>": {"id": "<s>", "ids": [257], "tokens": ["<s>"]},
        "</s>": {"id": "</s>", "ids": [258], "tokens": ["</s>"]},
    },
}


JSON = json.dumps(small_json())
BPE_PARTS = json.loads(JSON)["model"]
TOKENIZER_JSON = [
    (b"", "found an empty file"),
    (JSON[:500].encode(), "found no JSON object .Unterminated string"),
    (b"{}", "Model missing"),
    (b"\xff" + JSON.encode(), "found no JSON object .*utf-8"),
    (b"[" * 100_000, "recursion|invalid type"),
    (json.dumps(small_json(decoder=None)), r"found decoder none in \[None\], needs"),
    (
        json.dumps(small_json(decoder={"type": "WordPiece", "prefix": "#", "cleanup": True})),
        "found decoder WordPiece in .*, needs ByteLevel",
    ),
    (json.dumps(small_json(model=BPE_PARTS | {"merges": ["h zzz"]})), "zzz|Merges"),
    (json.dumps(small_json(model=BPE_PARTS | {"vocab": {"a": -1}})), "invalid|data did not"),
    # A panic in tokenizers:
    (json.dumps(small_json(post_processor=BOS_IN_FRONT | {"special_tokens": {}})), "no entry"),
]
ADDED = small_json()["added_tokens"]


def moved(id):
    """A token that is added under an id that it would not get."""
    odd = ADDED[0] | {"id": id, "content": "<moved>", "special": False}
    return json.dumps(small_json(added_tokens=[*ADDED, odd]))


TOKENIZER_JSON += [
    (moved(id), f"found the added token '<moved>' with the id {id}, needs 259, the next")
    for id in (100_000, 300, 5)
]


def replacing(old, new):
    return {"type": "Replace", "pattern": old, "content": new}


def in_a_row(name, steps):
    return {"type": "Sequence", name: steps}


DOUBLED = in_a_row("normalizers", [replacing({"String": "a"}, "aa")] * 60)
CHARSMAP = base64.b64encode(struct.pack("<I", 0) + b"x" * 100_000 + b"\0").decode()
LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
REPEATED = {
    "type": "TemplateProcessing",
    "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 10_000,
    "pair": [],
    "special_tokens": {},
}
# What makes a text endless: the package tokenizers would fill the memory, and end the process when
# there is no more.
ENDLESS = [
    (
        {"normalizer": DOUBLED},
        "found steps in normalizer and pre_tok",
    ),
    ({"normalizer": in_a_row("normalizers", [DOUBLED])}, "normalizer and pre_tokenizer"),
    (
        {"normalizer": in_a_row("normalizers", [replacing({"Regex": "a?"}, "a" * 2000)] * 2)},
        "that can make a text 4e+06 times as long, needs at most 5000 times",
    ),
    (
        {"normalizer": in_a_row("normalizers", [{"type": "Prepend", "prepend": "a" * 99}] * 4)},
        "1e+08 times as long",
    ),
    (
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": CHARSMAP}},
        "1e+05 times as long",
    ),
    ({"pre_tokenizer": in_a_row("pretokenizers", [LEVEL] * 60)}, "1.15e+18"),
    (
        {"normalizer": in_a_row("normalizers", [{"type": "Strip"}] * 65)},
        "found 65 steps in normalizer and pre_tokenizer, needs at most 64",
    ),
    (
        {"post_processor": REPEATED},
        "steps in post_processor that can make a text 1e",
    ),
    (
        {"decoder": in_a_row("decoders", [replacing({"String": "a"}, "aa")] * 60)},
        "found steps in decoder that can",
    ),
    (
        {"normalizer": {"pattern": {"String": "a"}}},
        "found a step in normalizer without a",
    ),
    (
        {"normalizer": {"type": "Sequence"}},
        "found a Sequence in normalizer without normalizers",
    ),
]
TOKENIZER_JSON += [
    (json.dumps(small_json(normalizer=None, pre_tokenizer=None) | parts), re.escape(message))
    for parts, message in ENDLESS
]
CONFIGS = [
    ("{", "found no JSON object"),
    ("[]", "found a JSON list"),
    (
        '{"bos_token": "<nowhere>"}',
        "bos_token = '<nowhere>', needs a token of this tokenizer",
    ),
    ('{"eos_token": 3}', "eos_token = 3, needs text, or an object with text"),
    ('{"add_bos_token": "yes"}', "add_bos_token = 'yes', needs true or false"),
    (
        '{"add_bos_token": true}',
        "add_bos_token = True, needs false where there is no bos_token",
    ),
]
CONFIGS += [
    (json.dumps({"eos_token": token}), re.escape(f"eos_token = {token}, needs text, or an object"))
    for token in (3, ["</s>"], True, {}, {"content": 3}, {"content": None})
]
CONFIG_FILES = [
    ({"tokenizer_config.json": config, "tokenizer.json": JSON}, message)
    for config, message in CONFIGS
]
CONFIG_FILES += [
    ({"special_tokens_map.json": config, "tokenizer_config.json": "{}"}, message)
    for config, message in CONFIGS
    if "object" in message
]

# ---- vocab.json and merges.txt -------------------------------------------------------------------

VOCABULARIES = [
    ("{", "found no JSON object"),
    ('{"a": 1}', "found 1 tokens with other ids, needs the numbers 0 to 0"),
    ('{"a": "0"}', "found 1 tokens with other ids, needs the numbers 0 to 0"),
    ('{"a": 0}', "no tokens for 255 of the 256 single bytes"),
    ('{"a": 0, "a": 1}', "a key appears twice"),
]
MERGES = [
    ("h i\nhi\n", "found 'hi' in line 2, needs two tokens"),
    ("h i i\n", "found 'h i i' in line 1, needs two tokens"),
    ("h h\n", "found 'h h' in line 1, .* union is a token too"),
    ("h i\r\n", r"found 'h i.r' in line 1, needs"),
]
ADDED_TO_VOCABULARY = [
    (
        {
            "tokenizer_config.json": json.dumps({"added_tokens_decoder": tokens}),
            "config.json": '{"model_type": "gpt2"}',
        },
        message,
    )
    for tokens, message in [
        ({"300": {"content": "<x>"}}, "the added token '<x>' with the id 300, needs 260"),
        ({"260": "<x>"}, "added_tokens_decoder = .*, needs an object of tokens by id"),
    ]
]

# ---- GGUF ----------------------------------------------------------------------------------------

NORMAL, UNKNOWN, CONTROL, DEFINED, _, BYTE = range(1, 7)  # types of tokens


def small_byte_level(**others):
    tokens = [*sorted(BYTE_OF_CHARACTER), "hi", "ab", "aĠb", "<s>", "</s>", "<end_of_turn>", "<do>"]
    types = [NORMAL] * 259 + [CONTROL] * 3 + [DEFINED]
    keys = tokenizer_keys(tokens, types, "gpt2", pre=(STRING, "gpt-2"))
    keys["tokenizer.ggml.merges"] = (ARRAY, ["h i", "a b"], STRING)
    keys |= {f"tokenizer.ggml.{name}": value for name, value in others.items()}
    return {name: value for name, value in keys.items() if value is not None}


TWICE = [*sorted(BYTE_OF_CHARACTER), "a"]
CHANGES = [
    ({"model": (STRING, "bert")}, "model = 'bert', needs gpt2 or llama"),
    ({"pre": None}, "pre = None, and with it no way to cut a text that is known here"),
    (
        {"pre": (STRING, "falcon")},
        "pre = 'falcon', and with it no way to cut a text that is known here, needs one of ",
    ),
    ({"tokens": (STRING, "a")}, "tokens = 'a', needs an array"),
    (
        {"token_type": (ARRAY, [1, 2], 5)},
        "2 elements of tokenizer.ggml.token_type, needs 263, as there are tokens",
    ),
    ({"bos_token_id": (4, 263)}, "bos_token_id = 263, needs an id "),
    (
        {"merges": (ARRAY, ["h i", "i h"], STRING)},
        "Token `ih` out of vocabulary",
    ),
    (
        {"merges": (ARRAY, ["h i", " h"], STRING)},
        "' h' in tokenizer.ggml.merges, needs two tokens with a space between them",
    ),
    ({"merges": None}, "merges = None, needs an array"),
    (
        {"tokens": (ARRAY, TWICE, STRING), "token_type": None},
        "the token 'a' twice, needs each once",
    ),
    (
        {"tokens": (ARRAY, ["h", "i", "hi"], STRING), "token_type": None},
        "no tokens for 254 of the 256 single bytes, the first is byte 0, needs all of them",
    ),
    ({"model": (STRING, "llama")}, "scores = None, needs an array"),
    (
        {"model": (STRING, "llama"), "scores": (ARRAY, [0.0], 6)},
        "1 elements of tokenizer.ggml.scores, 1 finite, needs 263 finite ones",
    ),
    (
        {"model": (STRING, "llama"), "scores": (ARRAY, [float("nan")] * 263, 6)},
        "263 elements of tokenizer.ggml.scores, 0 finite",
    ),
    (
        {"model": (STRING, "llama"), "scores": (ARRAY, [0.0] * 263, 6)},
        "no tokens for 256 of the 256 single bytes, the first is byte 0",
    ),
    ({"add_bos_token": (4, 1)}, "add_bos_token = 1, needs true or false"),
]


def of_keys(keys):
    return gguf_files.file_bytes([key_bytes(name, *value) for name, value in keys.items()], [], b"")


GGUF = [
    (of_keys(small_byte_level(**changes)), "found .*" + re.escape(message))
    for changes, message in CHANGES
]

# ---- llama2.c ------------------------------------------------------------------------------------

GOOD = tokenizer_bytes(*tiny_tokenizer(300))
LLAMA2C = [
    (b"", "found an empty file"),
    (b"ab", "found 2 bytes, needs at least 4"),
    (GOOD[:4], "found 0 tokens, needs at least 259"),
    (GOOD[:2000], "token 142 at byte"),
    (GOOD[:-1], "found 6 bytes of token .*, needs 7|7 bytes of token .*, needs 8"),
    (GOOD + b"\0", "the end of the file in the score and length of token 300 at byte"),
    (b"\0\0\0\0" + GOOD[4:], "the length 5 of token 0 at byte 12, needs 1 to 0"),
    (GOOD[:8] + b"\0\0\0\0" + GOOD[12:], "the length 0 of token 0 at byte 12"),
    (GOOD[:8] + b"\xff\xff\xff\xff" + GOOD[12:], "the length -1 of token 0 at byte 12"),
    (GOOD[:8] + b"\xff\xff\xff\x7f" + GOOD[12:], "the length 2147483647 of token 0 at byte 12"),
    (
        b"\xff\xff\xff\x7f" + GOOD[4:8] + b"\xff\xff\xff\x7f" + GOOD[12:],
        "found .* bytes of token 0 .*, needs 2147483647",
    ),
    (GOOD[:4] + struct.pack("<f", float("nan")) + GOOD[8:], "the score nan of token 0"),
    (GOOD.replace(b"<0x41>", b"<0x42>"), "found b'<0x42>' as token 68, needs b'<0x41>'"),
]

# ---- all of them ---------------------------------------------------------------------------------

(PROTOBUF,) = seeds.sentencepiece_seed()
SENTENCEPIECE = [
    (PROTOBUF[:size], r"found something other than a sentencepiece model \(")
    for size in (1, 2, 10, 1000, len(PROTOBUF) - 1)
]
OF_TARGETS = {
    "tiktoken": TIKTOKEN,
    "tokenizer": TOKENIZER_JSON,
    "tokenizer-config": CONFIG_FILES,
    "vocab": VOCABULARIES + ADDED_TO_VOCABULARY,
    "merges": MERGES,
    "sentencepiece": SENTENCEPIECE,
    "gguf-tokenizer": GGUF,
    "llama2c-tokenizer": LLAMA2C,
}
TOKENIZER_LIES = [
    (name, data, re.compile(message)) for name, lies in OF_TARGETS.items() for data, message in lies
]
