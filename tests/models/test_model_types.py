"""What a model_type means: configs as they are published, what they leave out, and what is refused.
That the models compute the same as transformers stands in test_checkpoints.py."""

import dataclasses
from functools import partial

import ml_dtypes
import numpy as np
import pytest
import torch

import simdformer as sf
import tiny_models
from checkpoints import told
from simdformer import cli
from simdformer.checkpoints import CheckpointError, read_checkpoint, tensor_names
from simdformer.checkpoints.fused import FUSED
from simdformer.checkpoints.huggingface_architectures import ARCHITECTURES
from simdformer.checkpoints.huggingface_config import architecture_of, make_config
from simdformer.checkpoints.stacked import STACKED
from simdformer.checkpoints.tensor_names import TensorNames
from simdformer.models.budget import parameter_budget, weight_bytes
from simdformer.models.weight_table import IN_LAYERS, OUTSIDE

SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 500,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
}
MANY = [f"tensor {number}" for number in range(200)]


def config_of(kind, **changes):
    """The config of a config.json with such entries beside SIZES; without an activation said, the
    type's own."""
    activation = ARCHITECTURES[kind].activation
    usual = "silu" if activation == "hidden_act" else "gelu_pytorch_tanh"
    found = SIZES | {"model_type": kind, activation: usual} | changes
    return make_config(found, architecture_of(found), MANY)


KINDS = [value for value in vars(tensor_names).values() if isinstance(value, TensorNames)]


@pytest.mark.parametrize("format", TensorNames._fields)
def test_every_name_of_a_file_means_a_tensor_that_there_is(format):
    known = {row.name for rows in OUTSIDE for row in rows}
    known |= {f"layers.{{}}.{row.name}" for row in IN_LAYERS}
    for ours in {ours for kind in KINDS for ours in getattr(kind, format).values()}:
        layer, _, kind = ours.rpartition(".")
        stacked = layer.endswith(".experts")
        parts = STACKED[kind][1] if stacked else FUSED.get(kind, (kind,))
        at = f"{layer}.{{}}." if stacked else f"{layer}." if layer else ""
        assert {at + part for part in parts} <= known


# ---- what configs say, and what they leave out ---------------------------------------------------


def test_gemma_2_has_a_window_in_every_other_layer():
    config = config_of("gemma2", query_pre_attn_scalar=144)
    assert config.sliding_window == (4096, None) * 6
    assert (config.attention_softcap, config.logit_softcap) == (50.0, 30.0)
    assert (config.attention_scale, config.embed_scale) == (1 / 12, 8.0)
    assert (config.head_dim, config.norm_offset, config.norm_placement) == (256, 1.0, "both")
    assert config.activation == "gelu_tanh"
    off = config_of("gemma2", attn_logit_softcapping=None, final_logit_softcapping=None)
    assert (off.attention_softcap, off.logit_softcap) == (None, None)


EIGHTH = {"rope_type": "linear", "factor": 8.0}


@pytest.mark.parametrize(
    ("said", "far", "near", "scaling"),
    [
        ({}, 1e6, 1e4, None),
        ({"rope_theta": 2e6, "rope_local_base_freq": 5e3}, 2e6, 5e3, None),
        ({"rope_scaling": EIGHTH}, 1e6, 1e4, EIGHTH),
        ({"rope_parameters": tiny_models.LOCAL_ROPE}, 1e6, 5e3, EIGHTH),
        ({"rope_parameters": {"sliding_attention": {"rope_theta": 7e3}}}, 1e6, 7e3, None),
    ],
)
def test_gemma_3_turns_layers_with_a_window_by_a_theta_of_their_own(said, far, near, scaling):
    config = config_of("gemma3_text", sliding_window=512, **said)
    assert config.sliding_window == ((512,) * 5 + (None,)) * 2
    assert (config.rope_theta, config.local_rope_theta) == (far, near)
    assert config.rope_scaling == scaling
    assert config.qk_norm


def test_smollm3_has_no_rope_in_every_fourth_layer():
    config = config_of("smollm3")
    assert config.rope_layers == (True, True, True, False) * 3
    assert (config.rope_theta, config.sliding_window) == (2e6, None)
    assert config_of("smollm3", no_rope_layers=[1] * 12).rope_layers is None
    some = {"no_rope_layers": [1, 0] * 6, "sliding_window": 9}
    assert config_of("smollm3", **some).sliding_window is None
    assert config_of("smollm3", **some, use_sliding_window=True).sliding_window == (None, 9) * 6


GPT2 = {"n_embd": 64, "n_layer": 12, "n_head": 4, "n_positions": 128, "layer_norm_epsilon": 1e-5}


def test_gpt2_has_learned_positions_and_no_gate():
    config = config_of("gpt2", **GPT2)
    assert (config.positions, config.norm, config.gated_mlp) == ("learned", "layer_norm", False)
    assert (config.qkv_bias, config.wo_bias, config.mlp_bias) == (True, True, True)
    assert (config.intermediate_size, config.head_dim, config.num_kv_heads) == (256, 16, 4)
    assert (config.max_seq_len, config.tie_embeddings, config.turns(0)) == (128, True, False)
    assert config_of("gpt2", **GPT2, n_inner=99).intermediate_size == 99


def test_granite_scales():
    config = config_of(
        "granite",
        embedding_multiplier=12,
        residual_multiplier=0.22,
        attention_multiplier=0.015625,
        logits_scaling=8.0,
    )
    assert (config.embed_scale, config.residual_scale) == (12, 0.22)
    assert (config.attention_scale, config.logit_divisor) == (0.015625, 8.0)
    assert config_of("granite").attention_scale == 1.0  # not 1/sqrt(head_dim)


def test_olmo_2_has_its_norms_behind():
    config = config_of("olmo2")
    assert (config.norm_placement, config.qk_norm_over) == ("after", "all_heads")


LONGROPE = {"type": "su", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
LONGROPE["original_max_position_embeddings"] = 1024


def test_phi_3_has_other_frequencies_for_long_texts():
    config = config_of("phi3", rope_scaling=LONGROPE)
    assert config.rope_boundary == 1024
    assert config.rope_scaling["factor"] == 4
    top = {name: LONGROPE[name] for name in ("type", "short_factor", "long_factor")}
    beside = config_of("phi3", rope_scaling=top, original_max_position_embeddings=1024)
    assert beside == config
    assert config_of("phi3").rope_boundary is None


def test_a_text_is_turned_by_its_own_length_whatever_is_beside_it(changed):
    """As a batch in which some pass the boundary of 16, and as each alone."""
    model = sf.from_pretrained(changed("phi3-longrope", lambda tensors: None))
    prompts = [list(range(at, at + count)) for at, count in ((1, 4), (7, 13), (3, 15), (20, 30))]
    for prompt, new in zip(prompts, model.generate(prompts, max_new_tokens=9), strict=True):
        for at, id in enumerate(new):  # is what all before it gives when it is read at once
            assert model([*prompt, *new[:at]])[-1].argmax() == id
    cache = model.new_cache(40, batch=2)
    for row, count in ((0, 10), (1, 20)):
        model.transformer(np.arange(count), cache.sequence(row))
    both = model.transformer([[5], [6]], cache)
    for row, count, id in ((0, 10, 5), (1, 20, 6)):
        alone = model.new_cache(40)
        model.transformer(np.arange(count), alone)
        np.testing.assert_array_equal(model.transformer([id], alone)[-1], both[row, -1])


def test_phi_3_turns_a_part_of_each_head():
    assert config_of("phi3").rotary_dim is None
    assert config_of("phi3", partial_rotary_factor=0.75).rotary_dim == 12
    assert config_of("phi3", partial_rotary_factor=1.0, sliding_window=7).sliding_window == 7
    new = {"rope_theta": 1e4, "rope_type": "default", "partial_rotary_factor": 0.5}
    assert config_of("phi3", rope_parameters=new).rotary_dim == 8


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("gemma2", {"hidden_activation": None}, "found no hidden_activation, needs"),
        ("gemma2", {"hidden_activation": "gelu"}, "hidden_activation = 'gelu', which is not supp"),
        ("gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar = 0, needs a whole"),
        ("gemma2", {"hidden_size": "64"}, "hidden_size = '64', needs a whole number"),
        ("gemma2", {"final_logit_softcapping": -1.0}, "final_logit_softcapping = -1.0, needs"),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention = True, wh"),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0, which"),
        ("gemma3_text", {"sliding_window_pattern": 0}, "sliding_window_pattern = 0, needs a"),
        (
            "gemma3_text",
            {"rope_parameters": {"full_attention": {}, "chunked_attention": {}}},
            "needs one of a type",
        ),
        (
            "gemma3_text",
            {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}},
            "rope_type = 'linear', which is not supported, needs 'default'",
        ),
        ("gemma3_text", {"rope_parameters": {"full_attention": [1]}}, "an object for each type"),
        ("gemma3_text", {"rope_local_base_freq": -1}, "rope_local_base_freq = -1, needs"),
        ("gpt2", GPT2 | {"n_embd": None}, "found no n_embd, needs a value"),
        ("gpt2", GPT2 | {"n_embd": 66}, "n_head = 4, needs a divisor of n_embd = 66"),
        ("gpt2", GPT2 | {"n_inner": -1}, "n_inner = -1, needs a whole number > 0"),
        ("gpt2", GPT2 | {"scale_attn_weights": False}, "scale_attn_weights = False, which is not"),
        (
            "gpt2",
            GPT2 | {"scale_attn_by_inverse_layer_idx": True},
            "scale_attn_by_inverse_layer_idx = True, which is not supported, needs False",
        ),
        ("gpt2", GPT2 | {"activation_function": "relu"}, "activation_function = 'relu', which is"),
        ("granite", {"logits_scaling": 0}, "logits_scaling = 0, needs finite and > 0"),
        ("smollm3", {"mlp_bias": True}, "mlp_bias = True, which is not supported"),
        ("smollm3", {"no_rope_layers": [1, 0]}, "no_rope_layers = [1, 0], needs 0 or 1 for"),
        ("smollm3", {"no_rope_layer_interval": 0}, "no_rope_layer_interval = 0, needs"),
        ("olmo2", {"sliding_window": 8}, "needs null or layer_types: olmo2 has none"),
        ("phi3", {"rope_scaling": {"type": "longrope"}}, "has no short_factor, long_factor, orig"),
        (
            "phi3",  # what transformers takes for longrope too
            {"rope_scaling": {"type": "yarn", "factor": 2.0}},
            'scaling of type "longrope" has no short_factor',
        ),
        (
            "phi3",
            {"rope_scaling": {"type": "linear", "factor": 2.0}},
            "rope_type = 'linear', which is not supported, needs 'default' or 'longrope'",
        ),
        (
            "phi3",
            {"rope_scaling": LONGROPE, "partial_rotary_factor": 0.5},
            "scaling['short_factor'] are 8 numbers, needs 4, one for each pair",
        ),
        ("phi3", {"partial_rotary_factor": 2}, "partial_rotary_factor = 2, needs a number > 0"),
        ("phi3", {"partial_rotary_factor": 0.2}, "partial_rotary_factor = 3, needs None, or"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5, which is not sup"),
        ("llama", {"final_logit_softcapping": 30.0}, "final_logit_softcapping = 30.0, which is"),
    ],
)
def test_a_config_that_asks_for_what_is_not_there_is_refused(kind, changes, message):
    with pytest.raises(CheckpointError) as caught:
        config_of(kind, **changes)
    assert message in str(caught.value)


# ---- tensors -------------------------------------------------------------------------------------


@pytest.fixture
def changed(tmp_path):
    return partial(tiny_models.save_changed, tmp_path)


def test_gpt2_without_the_prefix_and_with_masks_is_the_same(changed):
    """As the hub has it: saved before there was a model around it."""

    def old(tensors):
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)
        tensors["h.0.attn.bias"] = torch.ones(1, 1, 8, 8)
        tensors["h.0.attn.masked_bias"] = torch.tensor(-1e4)

    ids = np.arange(20)
    theirs = tiny_models.logits(tiny_models.make("gpt2"), ids)
    folder = changed("gpt2", old)
    np.testing.assert_allclose(sf.from_pretrained(folder)(ids), theirs[0], atol=1e-4)
    with pytest.raises(CheckpointError, match=r"left over: h.0.attn.other \(1,\) in model.safet"):
        read_checkpoint(changed("gpt2", lambda t: [old(t), t.update({"h.0.attn.other": ONE})]))


ONE = torch.ones(1)


def test_positions_that_nobody_has_learned(changed):
    folder = changed("gpt2", lambda tensors: None)
    model = sf.from_pretrained(folder, max_seq_len=100)
    cache = model.new_cache(300)
    model(np.zeros(100, int), cache)
    with pytest.raises(ValueError, match="1 ids behind 100 are more than the 100 positions that"):
        model([1], cache)
    with pytest.raises(ValueError, match="max_seq_len is 129, needs at most 128, the positio"):
        sf.from_pretrained(folder, max_seq_len=129)


QKV = "model.layers.1.self_attn.qkv_proj.weight"


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("phi3", lambda t: t.pop(QKV), f"missing: {QKV} (32, 32) [layers.1.wq] in model.safe"),
        (
            "phi3",
            lambda t: t.update({QKV: torch.zeros(63, 32)}),
            f"misshapen: {QKV} (15, 32) [layers.1.wv] in model.safetensors, needs (16, 32) = (n",
        ),
        (
            "phi3",
            lambda t: t.update({QKV: torch.zeros(65, 32)}),
            f"misshapen: {QKV} (17, 32) [layers.1.wv]",
        ),
        ("phi3", lambda t: t.update({QKV: torch.tensor(1.0)}), f"left over: {QKV} () [layers.1."),
        (
            "olmo2",
            lambda t: t.update({"model.layers.0.self_attn.k_norm.weight": torch.zeros(8)}),
            "(8,) [layers.0.k_norm] in model.safetensors, needs (16,) = (num_key_value_heads * ",
        ),
        (
            "gemma2",
            lambda t: t.pop("model.layers.2.pre_feedforward_layernorm.weight"),
            "missing: model.layers.2.pre_feedforward_layernorm.weight (32,) [layers.2.mlp_norm]",
        ),
        (
            "olmo2",
            lambda t: t.update({"model.layers.0.input_layernorm.weight": torch.zeros(32)}),
            "left over: model.layers.0.input_layernorm.weight (32,) in model.safetensors",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named_as_in_the_file(changed, name, change, message):
    assert message in told(changed(name, change))


def arrays_of(weights):
    """What a part of a model's weights holds, however deep."""
    for name in (field.name for field in dataclasses.fields(weights)):
        held = getattr(weights, name)
        for one in held if isinstance(held, list) else [held]:
            if dataclasses.is_dataclass(one):
                yield from arrays_of(one)
            elif one is not None:
                yield one


@pytest.mark.parametrize(
    "name",
    [
        *("llama3", "llama3.2", "qwen2", "gemma2", "gemma3", "olmo2", "phi3", "gpt2"),
        *("llama-mlp-bias", "mixtral", "qwen2-moe", "qwen2-moe-window"),
    ],
)
def test_the_budget_is_what_the_model_has(tmp_path, name):
    model = tiny_models.make(name).to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    checkpoint = read_checkpoint(tmp_path)
    budget = parameter_budget(checkpoint.config)
    assert sum(budget.values()) == sum(parameter.numel() for parameter in model.parameters())
    assert (budget["lm_head"] == 0) == checkpoint.config.tie_embeddings
    weights = sf.from_pretrained(tmp_path).transformer.weights
    held = [weights.embed, weights.final_norm]
    held += [each for each in (weights.pos_embed, weights.final_norm_bias) if each is not None]
    held += [] if checkpoint.config.tie_embeddings else [weights.lm_head]
    for layer in weights.layers:
        held += arrays_of(layer)
    needed = weight_bytes(checkpoint.config, checkpoint.weights, None)
    assert needed == sum(array.nbytes for array in held)


def test_one_plus_a_weight_of_16_bits_is_not_rounded(tmp_path):
    tiny_models.make("gemma2").to(torch.bfloat16).save_pretrained(tmp_path)
    checkpoint = read_checkpoint(tmp_path)
    stored = np.asarray(checkpoint.weights["layers.0.attn_norm"])
    assert stored.dtype == ml_dtypes.bfloat16
    norm = sf.from_pretrained(tmp_path).transformer.weights.layers[0].attn_norm
    assert norm.dtype == np.float32
    np.testing.assert_array_equal(norm, 1 + stored.astype(np.float32))


def test_a_class_of_another_type_is_refused(changed):
    folder = changed("granite", architectures=["LlamaForCausalLM"])
    assert "needs GraniteForCausalLM for granite" in told(folder)


def test_info_says_nothing_of_rope_where_positions_are_learned(tmp_path, capsys):
    tiny_models.make("gpt2").save_pretrained(tmp_path)
    assert cli.main(["info", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "positions          learned\n" in shown
    assert "gated_mlp          False\n" in shown
    assert "rope" not in shown


def test_info_lists_the_switches_that_are_on(tmp_path, capsys):
    tiny_models.make("granite").save_pretrained(tmp_path)
    assert cli.main(["info", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "embed_scale        3.0\n" in shown
    assert "logit_divisor      2.0\n" in shown
    assert "hidden_size        32\n" in shown
    assert "norm_placement" not in shown


# ---- configs of strangers ------------------------------------------------------------------------

FULL = {
    "granite": dict.fromkeys(ARCHITECTURES["granite"].numbers, 2.0) | {"mlp_bias": True},
    "gpt2": GPT2 | {"n_inner": 80, "tie_word_embeddings": True},
    "smollm3": {"no_rope_layers": [1, 0] * 6, "use_sliding_window": True, "sliding_window": 9},
    "olmo2": {"attention_bias": True, "rope_theta": 5e5},
    "gemma2": ARCHITECTURES["gemma2"].unsaid | {"layer_types": ["full_attention"] * 12},
    "gemma3_text": ARCHITECTURES["gemma3_text"].unsaid
    | {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": EIGHTH},
    "phi3": {"rope_parameters": {"partial_rotary_factor": 0.5, "rope_type": "default"}},
}
FULL["llama"] = {"rope_parameters": tiny_models.LLAMA3, "rope_theta": 5e5}
FULL["qwen2"] = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
FULL["qwen2"] |= {"rope_scaling": tiny_models.YARN}
FULL["gemma3_text, new"] = {"rope_parameters": tiny_models.LOCAL_ROPE}
ODD = [
    None,
    True,
    "x",
    "",
    [],
    [1],
    {},
    {"a": {}},
    -1,
    0,
    1,
    0.5,
    -2.5,
    2**70,
    10**400,
    1e308,
    [[]],
]


def odd_ones(value):
    """The value with every part of it exchanged for something odd, one at a time."""
    yield from ODD
    for key, part in value.items() if isinstance(value, dict) else ():
        for odd in odd_ones(part):
            yield value | {key: odd}


@pytest.mark.parametrize("kind", FULL)
def test_a_config_is_read_or_refused_whatever_it_says(kind):
    """Never another error, and never a model that it did not ask for."""
    type_, own = kind.split(",")[0], FULL[kind]
    config_of(type_, **own)
    refused = 0
    for name, value in (SIZES | own).items():
        for odd in odd_ones(value):
            try:
                config_of(type_, **own | {name: odd})
            except CheckpointError:
                refused += 1
    assert refused > 100
