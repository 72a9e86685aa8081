"""Files of tokenizers that lie, each with what is said of it (a regular expression), by the target
of fuzz/targets.py that reads it. Several files stand by their names, the one that lies first."""

import base64
import json
import re

import tokenizers

import seeds

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
}
TOKENIZER_LIES = [
    (name, data, re.compile(message)) for name, lies in OF_TARGETS.items() for data, message in lies
]
