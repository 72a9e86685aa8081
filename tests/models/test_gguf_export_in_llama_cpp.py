"""llama.cpp opens the files that are written here, cuts texts into the same ids, and computes what
we compute, as far as its own rounding of activations lets it."""

import warnings

import numpy as np
import pytest

import simdformer as sf
import tiny_models
from simdformer.bench import llama_cpp
from simdformer.checkpoints.gguf_mixtures import MIXTURES
from simdformer.text.quantizing import quantize_checkpoint

TEXT = "Mia has a red kite. Tom has a blue boat. What colour is the boat of Tom? It is"
TEXTS = (TEXT, "It's 3.14, isn't it?\n\n  Straße 東京 🙂", "x = [1, 2]; y\t= x")
# Its products are of activations in the weights' 16 bits, or in 8 bits a number.
ERROR = {"f16": 2e-3, "bf16": 1e-2}
OF_EIGHT_BITS = 3e-2
NOT_THERE = llama_cpp.missing()

pytestmark = pytest.mark.skipif(NOT_THERE is not None, reason=str(NOT_THERE))


@pytest.fixture
def theirs():
    """theirs(path) is the model in llama.cpp's hands."""
    import llama_cpp

    made = []

    def opened(path):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made.append(
                llama_cpp.Llama(str(path), n_ctx=256, n_threads=1, verbose=False, logits_all=True)
            )
        return made[-1]

    yield opened
    for model in made:
        model.close()


def logits_of(model, ids):
    model.reset()
    model.eval(ids)
    return np.array(model.scores[: len(ids)])


def check_same(path, theirs, tolerance):
    ours, other = sf.from_pretrained(path), theirs(path)
    assert other.n_vocab() == ours.config.vocab_size
    for text in TEXTS:
        ids = ours.tokenizer.encode(text)
        assert other.tokenize(text.encode(), add_bos=True, special=False) == ids
    ids = ours.tokenizer.encode(TEXT)
    found, needed = logits_of(other, ids), ours(ids)
    assert np.sqrt(np.sum((found - needed) ** 2) / np.sum(needed**2)) < tolerance
    # Where the two differ in what is likeliest, both found it as likely but for that error.
    rows = np.arange(len(ids))
    lost = needed.max(-1) - needed[rows, found.argmax(-1)]
    assert lost.max() < 4 * tolerance * np.abs(needed).max()


@pytest.mark.parametrize("type", MIXTURES)
def test_the_demonstration_model_in_every_type(type, theirs, tmp_path):
    quantize_checkpoint("demo", tmp_path / "demo.gguf", type)
    check_same(tmp_path / "demo.gguf", theirs, ERROR.get(type, OF_EIGHT_BITS))


# Models wide enough for whole blocks, and what llama.cpp takes for granted in them. (A scaling that
# is not rounded to whole dimensions, as gpt-oss has it, and Phi-3's windows it does not know.)
WIDE = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2, "head_dim": 64}
EXPERTS = {"moe_intermediate_size": 256, "shared_expert_intermediate_size": 256}
GPT2 = {"n_embd": 256, "n_inner": 256, "n_layer": 2}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.75,
    "short_factor": np.linspace(1, 3, 24).tolist(),
    "long_factor": np.linspace(2, 9, 24).tolist(),
}
WRITTEN = {
    "llama3.1": {},
    "qwen2-tied-yarn": {},
    "qwen3": {},
    "granite": {},
    "smollm3": {"no_rope_layer_interval": 4, "num_hidden_layers": 5},
    "olmo2": {},
    "olmo3": {
        "layer_types": None,
        "rope_parameters": {
            "full_attention": tiny_models.YARN,
            "sliding_attention": {"rope_theta": 1e4},
        },
    },
    "gemma2": {"query_pre_attn_scalar": 64},
    "gemma3": {"query_pre_attn_scalar": 64, "num_hidden_layers": 3},
    "phi3-longrope": {"rope_parameters": LONGROPE},
    "gpt2": GPT2,
    "gpt2-untied": GPT2,
    "mixtral": {"num_local_experts": 8},
    "qwen2-moe": EXPERTS,
    "qwen3-moe": EXPERTS,
    "gpt-oss": {"rope_parameters": {"rope_type": "default", "rope_theta": 150000.0}},
}
IDS = np.random.default_rng(2).integers(0, 96, 48)


@pytest.mark.parametrize(
    ("name", "type"),
    [(name, "bf16") for name in WRITTEN]
    + [("gemma3", "q8_0"), ("gpt2", "q4_k_m"), ("qwen3-moe", "q4_k_m"), ("gpt-oss", "mxfp4")],
)
def test_every_architecture_of_hugging_face(name, type, tmp_path):
    """Of most positions: an expert that is chosen by a hair may be another for llama.cpp."""
    model = tiny_models.make(name, **({} if name.startswith("gpt2") else WIDE) | WRITTEN[name])
    model.save_pretrained(tmp_path / "folder")
    path = tmp_path / "x.gguf"
    quantize_checkpoint(tmp_path / "folder", path, type)
    context = llama_cpp.Context(llama_cpp.Model(path, 96), len(IDS), 2, flash=False)
    theirs = np.stack([context.logits(IDS[at : at + 1], at) for at in range(len(IDS))])
    ours = sf.from_pretrained(path)(IDS)
    error = np.sqrt(np.mean((theirs - ours) ** 2, -1) / np.mean(ours**2))
    assert np.median(error) < (0.02 if type == "bf16" else 0.08)
    second, first = np.sort(ours)[:, -2:].T
    sure = (first - second > 5 * error * np.sqrt(np.mean(ours**2))) & (error < 0.1)
    assert sure.sum() >= 3
    np.testing.assert_array_equal(theirs.argmax(-1)[sure], ours.argmax(-1)[sure])


@pytest.mark.parametrize("type", ["f16", "q4_k_m"])
@pytest.mark.parametrize("name", ["llama3", "llama3.1", "qwen2", "qwen3"])
def test_models_of_hugging_face(name, type, theirs, shared, tmp_path):
    model = tiny_models.make(name, vocab_size=6400)
    model.save_pretrained(tmp_path / "folder")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "folder" / file).symlink_to(shared / "data" / "minimind" / file)
    quantize_checkpoint(tmp_path / "folder", tmp_path / "x.gguf", type)
    check_same(tmp_path / "x.gguf", theirs, ERROR.get(type, OF_EIGHT_BITS))
    chat = theirs(tmp_path / "x.gguf").metadata["tokenizer.chat_template"]
    assert "<|im_start|>" in chat


def test_a_conversation_of_ours_and_theirs_ends_at_the_same_ids(theirs, tmp_path):
    quantize_checkpoint("demo", tmp_path / "demo.gguf", "q8_0")
    ours, other = sf.from_pretrained(tmp_path / "demo.gguf"), theirs(tmp_path / "demo.gguf")
    assert other.token_eos() in ours.tokenizer.eos_ids
    assert other.token_bos() == ours.tokenizer.bos_id


def test_a_file_without_a_tokenizer_takes_ids(theirs, tmp_path):
    quantize_checkpoint("demo", tmp_path / "ids.gguf", "f16", tokenizer=False)
    ids = [768, 5, 9, 300]
    found = logits_of(theirs(tmp_path / "ids.gguf"), ids)
    needed = sf.from_pretrained(tmp_path / "ids.gguf")(ids)
    assert np.sqrt(np.sum((found - needed) ** 2) / np.sum(needed**2)) < ERROR["f16"]
