"""Tokenizers in GGUF files: the same ids as those that they were made from."""

import json

import pytest
import sentencepiece
import tokenizers

import gguf_files
import seeds
import simdformer as sf
from gguf_files import ARRAY, STRING, named_ids, tokenizer_keys
from simdformer.checkpoints import CheckpointError, gguf_file, read_checkpoint
from simdformer.text import huggingface_tokenizer
from simdformer.text.pretrained import find_tokenizer
from simdformer.text.quantizing import quantize_checkpoint
from simdformer.text.vocab_merges import BYTE_OF_CHARACTER
from test_tokenizers import NASTY
from tokenizer_lies import BYTE, CONTROL, NORMAL, UNKNOWN, small_byte_level

CHARACTER_OF_BYTE = {byte: character for character, byte in BYTE_OF_CHARACTER.items()}
MESSAGES = [{"role": "user", "content": "hi"}]


def written(file, keys):
    file.write_bytes(gguf_files.with_tokenizer(keys))
    return file


# ---- byte-level ----------------------------------------------------------------------------------


def llama3_keys(file):
    """Llama 3's tokenizer.model as the converter stores it: for every token all pairs of tokens
    that make it, in the order of ranks."""
    original = sf.tokenizer.load(file)
    ranks = original.ranks
    merges = []
    for token in ranks:
        pairs = [(token[:at], token[at:]) for at in range(1, len(token))]
        pairs = [pair for pair in pairs if pair[0] in ranks and pair[1] in ranks]
        merges += sorted(pairs, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))

    def spelled(token):
        return "".join(CHARACTER_OF_BYTE[byte] for byte in token)

    special = list(original.special)
    tokens = [*map(spelled, ranks), *special]
    types = [NORMAL] * len(ranks) + [CONTROL] * len(special)
    joined = [f"{spelled(left)} {spelled(right)}" for left, right in merges]
    first = len(ranks)
    keys = tokenizer_keys(tokens, types, "gpt2", pre=(STRING, "llama-bpe"))
    keys |= named_ids(bos=first, eos=first + 1, eot=first + 9)
    return original, keys | {"tokenizer.ggml.merges": (ARRAY, joined, STRING)}


def qwen2_keys(folder):
    original = sf.tokenizer.load(folder / "vocab.json")
    vocabulary = json.loads((folder / "vocab.json").read_text())
    added = json.loads((folder / "tokenizer_config.json").read_text())["added_tokens_decoder"]
    tokens = sorted(vocabulary, key=vocabulary.get) + [t["content"] for t in added.values()]
    types = [NORMAL] * len(vocabulary) + [CONTROL] * len(added)
    merges = (folder / "merges.txt").read_text().split("\n")
    merges = [line for line in merges if line and not line.startswith("#version")]
    keys = tokenizer_keys(tokens, types, "gpt2", pre=(STRING, "qwen2"))
    keys |= named_ids(eos=len(vocabulary) + 2, bos=len(vocabulary))
    keys["tokenizer.ggml.add_bos_token"] = (7, 0)
    return original, keys | {"tokenizer.ggml.merges": (ARRAY, merges, STRING)}


@pytest.fixture(scope="module", params=["llama3", "qwen2"])
def pair(request, shared, tmp_path_factory):
    """A published tokenizer, and the same in a GGUF file."""
    data = shared / "data" / request.param
    if request.param == "llama3":
        original, keys = llama3_keys(data / "tokenizer.model")
        assert len(keys["tokenizer.ggml.merges"][1]) == 280147
    else:
        original, keys = qwen2_keys(data)
    file = written(tmp_path_factory.mktemp(request.param) / "model.gguf", keys)
    return original, sf.tokenizer.load(file)


@pytest.mark.sampled(2)
def test_published_tokenizers_give_the_same_ids(pair):
    original, found = pair
    assert found.vocab_size == original.vocab_size
    assert found.bos_id == (original.bos_id or len(found._pieces) - 3)
    for text in NASTY:
        for special in (False, True):
            wanted = original.encode(text, special=special)
            assert found.encode(text, special=special) == wanted
            assert found.decode(wanted) == original.decode(wanted)
            assert found.decode(wanted, skip_special=True) == original.decode(
                wanted, skip_special=True
            )


@pytest.mark.sampled(2)
def test_ends_of_text(pair):
    original, found = pair
    assert set(original.eos_ids) <= set(found.eos_ids)
    names = {found.decode([id]) for id in found.eos_ids}
    assert names <= {"<|end_of_text|>", "<|eot_id|>", "<|im_end|>", "<|endoftext|>"}


def test_special_and_defined_tokens(tmp_path):
    keys = small_byte_level(add_bos_token=(7, 1)) | named_ids(bos=259, eos=260)
    tokenizer = sf.tokenizer.load(written(tmp_path / "x.gguf", keys))
    assert tokenizer.encode("hi<do>ab", bos=False) == [256, 262, 257]
    assert tokenizer.encode("hi") == [259, 256]
    assert tokenizer.encode("hi</s>", special=True) == [259, 256, 260]
    assert len(tokenizer.encode("</s>", bos=False)) == 4
    assert tokenizer.eos_ids == (260, 261)  # </s> by its key, <end_of_turn> by its name
    assert tokenizer.decode([259, 256, 262, 260], skip_special=True) == "hi<do>"


PRES = ["gpt-2", "smollm", "tekken", "default", "llama3", "deepseek-r1-qwen", "dbrx", "gpt-4o"]


@pytest.mark.parametrize("pre", PRES)
def test_every_way_to_cut_gives_the_text_back(pre, tmp_path):
    file = written(tmp_path / "x.gguf", small_byte_level(pre=(STRING, pre)))
    tokenizer = sf.tokenizer.load(file)
    for text in NASTY:
        composed = tokenizer.decode(tokenizer.encode(text))
        assert composed == text or pre == "deepseek-r1-qwen"


def test_gpt2_cuts_as_the_package_does(tmp_path):
    tokenizer = sf.tokenizer.load(written(tmp_path / "x.gguf", small_byte_level()))
    cuts = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    for text in NASTY:
        assert tokenizer.tokenizer.pre_tokenizer.pre_tokenize_str(text) == (
            cuts.pre_tokenize_str(text)
        )


def test_gpt_4o_keeps_endings_and_three_digits_together(tmp_path):
    tokenizer = sf.tokenizer.load(
        written(tmp_path / "x.gguf", small_byte_level(pre=(STRING, "gpt-4o")))
    )
    cut = tokenizer.tokenizer.pre_tokenizer.pre_tokenize_str("it's camelCASE'LL 1234")
    assert [part for part, _ in cut] == ["it's", "Ġcamel", "CASE'LL", "Ġ", "123", "4"]


def test_tekken_cuts_between_small_and_large_letters(tmp_path):
    tokenizer = sf.tokenizer.load(
        written(tmp_path / "x.gguf", small_byte_level(pre=(STRING, "tekken")))
    )
    cut = tokenizer.tokenizer.pre_tokenizer.pre_tokenize_str("camelCase 123 ABc/\n")
    assert [part for part, _ in cut] == ["camel", "Case", "Ġ", "1", "2", "3", "ĠABc", "/Ċ"]


# ---- by score ------------------------------------------------------------------------------------


def pieces_of(processor):
    kinds = [
        (processor.is_unknown, UNKNOWN),
        (processor.is_control, CONTROL),
        (processor.is_byte, BYTE),
    ]
    size = processor.vocab_size()
    types = [next((kind for is_, kind in kinds if is_(id)), NORMAL) for id in range(size)]
    tokens = [processor.id_to_piece(id) for id in range(size)]
    keys = tokenizer_keys(tokens, types, "llama")
    scores = [processor.get_score(id) for id in range(size)]
    return keys | {"tokenizer.ggml.scores": (ARRAY, scores, 6)} | named_ids(bos=1, eos=2)


@pytest.fixture(scope="module")
def processor():
    made = sentencepiece.SentencePieceProcessor()
    made.LoadFromSerializedProto(seeds.sentencepiece_seed()[0])
    return made


def test_scores_give_what_sentencepiece_gives(processor, tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(seeds.sentencepiece_seed()[0])
    original = sf.tokenizer.load(tmp_path / "tokenizer.model")
    found = sf.tokenizer.load(written(tmp_path / "x.gguf", pieces_of(processor)))
    assert (found.bos_id, found.eos_ids) == (1, (2,))
    words = ["hello world", "  how are  you?\n", "w<s>hello</s>world", "é日 hello", ""]
    for text in words:  # sentencepiece's own normaliser takes spaces away, ggml has none
        plain = " ".join(text.split())
        for special in (False, True):
            wanted = original.encode(plain, special=special)
            assert found.encode(plain, special=special) == wanted
            assert found.decode(wanted) == original.decode(wanted)
    assert found.decode(found.encode("  two  spaces ")[1:]) == "  two  spaces "


def test_scores_give_what_llama2c_gives(shared, tmp_path):
    original = sf.tokenizer.load(shared / "data" / "stories260K" / "tok512.bin")
    tokens = [p.decode().replace(" ", "▁") for p in (original._pieces[i] for i in range(259, 512))]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *tokens]
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * 253
    keys = tokenizer_keys(tokens, types, "llama") | named_ids(bos=1, eos=2)
    keys["tokenizer.ggml.scores"] = (ARRAY, original._merges._scores, 6)
    found = sf.tokenizer.load(written(tmp_path / "x.gguf", keys))
    for text in NASTY:
        assert found.encode(text) == original.encode(text)
        assert found.decode(found.encode(text)) == original.decode(original.encode(text))
    keys["tokenizer.ggml.add_space_prefix"] = (7, 0)
    keys["tokenizer.ggml.add_bos_token"] = (7, 0)
    found = sf.tokenizer.load(written(tmp_path / "x.gguf", keys))
    assert found.encode(" once") == original.encode("once")[1:]
    assert found.decode(found.encode(" once")) == " once"


# ---- with its model ------------------------------------------------------------------------------


def test_a_model_comes_with_tokenizer_and_template(tmp_path, command):
    keys = small_byte_level() | named_ids(bos=259, eos=260)
    template = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"
    keys["tokenizer.chat_template"] = (STRING, template)
    file = written(tmp_path / "model.gguf", keys)
    model = sf.from_pretrained(tmp_path)
    assert model.eos_ids == (260,)
    assert model.tokenizer.eos_ids == (260, 261)
    assert model.chat_template.ids(MESSAGES, model.tokenizer, {}) == [259, 256, 260]
    assert isinstance(model.generate("hi", max_new_tokens=3), str)

    status, out, _ = command("info", file)
    assert status == 0
    assert "format             gguf" in out
    assert "tokenizer          263 tokens" in out
    status, out, _ = command("run", file, "hi", "--max-new-tokens", "2")
    assert status == 0
    assert out.startswith("hi")


def test_a_header_is_read_for_the_model_and_for_the_tokenizer_and_no_more(tmp_path, monkeypatch):
    """A vocabulary of 150,000 tokens takes a twentieth of a second each time; template and names
    of its tokens need no more than what the model's reader found."""
    keys = small_byte_level() | named_ids(bos=259, eos=260)
    keys["tokenizer.chat_template"] = (STRING, "{{ bos_token }}")
    file, headers, whole = written(tmp_path / "x.gguf", keys), [], []
    begin, texts = gguf_file.Header.begin, gguf_file.StoredArray.texts
    monkeypatch.setattr(gguf_file.Header, "begin", lambda self: headers.append(self) or begin(self))
    monkeypatch.setattr(
        gguf_file.StoredArray, "texts", lambda self: whole.append(self.key) or texts(self)
    )
    model = sf.from_pretrained(file)
    assert model.chat_template.tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert len(headers) == 2
    assert whole == ["tokenizer.ggml.tokens", "tokenizer.ggml.merges"]


def test_pieces_are_made_when_they_are_asked_for(tmp_path, monkeypatch):
    file, spelled = written(tmp_path / "x.gguf", small_byte_level()), []
    making = huggingface_tokenizer.bytes_of_characters
    monkeypatch.setattr(
        huggingface_tokenizer,
        "bytes_of_characters",
        lambda token: spelled.append(token) or making(token),
    )
    tokenizer = sf.tokenizer.load(file)
    assert spelled == []
    assert tokenizer.decode([256, 262, 258, 999]) == "hi<do>a b"
    assert spelled == ["hi", "aĠb"]
    assert dict(tokenizer._pieces) == {id: tokenizer._pieces[id] for id in range(263)}
    with pytest.raises(KeyError):
        tokenizer._pieces[263]


def test_some_texts_of_an_array(tmp_path):
    keys = small_byte_level()
    keys["tokenizer.ggml.merges"] = (ARRAY, [b"h i", b"\xff", b"a b"], STRING)
    array = gguf_file.read_gguf(written(tmp_path / "x.gguf", keys)).metadata[
        "tokenizer.ggml.merges"
    ]
    assert array.some_texts([2, 0]) == {0: "h i", 2: "a b"}
    assert array.some_texts([]) == {}
    with pytest.raises(CheckpointError, match=r"not UTF-8 in tokenizer\.ggml\.merges\[1\]"):
        array.some_texts([1])


def test_a_file_without_a_tokenizer_is_a_model_on_ids(tmp_path):
    (tmp_path / "model.gguf").write_bytes(gguf_files.small_file())
    assert find_tokenizer(read_checkpoint(tmp_path / "model.gguf")) is None
    assert sf.from_pretrained(tmp_path).generate([1, 2], max_new_tokens=2)


def test_a_directory_with_a_model_in_it_has_its_tokenizer(tmp_path):
    quantize_checkpoint("demo", tmp_path / "demo.gguf", "q8_0")
    original = sf.from_pretrained("demo").tokenizer
    assert sf.tokenizer.load(tmp_path).encode("A red kite.") == original.encode("A red kite.")
    model = sf.from_pretrained(sf.demo_path(), tokenizer=tmp_path)
    assert model.tokenizer.encode("A red kite.") == original.encode("A red kite.")
    (tmp_path / "other.gguf").write_bytes((tmp_path / "demo.gguf").read_bytes())
    with pytest.raises(CheckpointError, match=r"found the tokenizers demo.gguf, other.gguf"):
        sf.tokenizer.load(tmp_path)
