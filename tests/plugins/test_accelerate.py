"""`accelerate` and `restore`: the same logits and ids, less time, and everything as it was."""

import copy
import sys

import pytest
import torch
import transformers

import simdformer as sf
from hugging import IDS, LEFT, PADDINGS, distance, made, with_attention
from simdformer.torch import accelerate, restore

accelerate_module = sys.modules["simdformer.torch.accelerate"]

ROUNDING = 2e-5  # standard deviations of a logit, float32

FAMILIES = [
    "llama-bias",
    "llama-mlp-bias",
    "llama3.2",  # a tied embedding, scaled frequencies
    "qwen2-tied-yarn",
    "qwen2-window",
    "qwen3",
    "mistral",
    "granite",  # layers that scale what they add
    "mixtral",  # experts stay with PyTorch
    "qwen3-moe-dense-window",
    "qwen2-moe",
]
OTHERS = ["gemma2", "gpt-oss", "phi3", "gpt2", "olmo2"]  # their attention and linear layers


def logits_of(model, mask=None):
    """Without the rows of padding."""
    with torch.inference_mode():
        logits = model(IDS, attention_mask=mask).logits
    return logits if mask is None else logits[mask.bool()]


def written(model, **options):
    options = {"max_new_tokens": 12, "do_sample": False} | options
    return model.generate(IDS, attention_mask=LEFT, **options).tolist()


def bits(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("weights", ["packed", "shared"])
@pytest.mark.parametrize("name", [*FAMILIES, *OTHERS])
def test_logits_and_ids_are_the_same(name, weights):
    model = made(name)
    expected = [logits_of(model, mask) for mask in PADDINGS.values()]
    ids = written(model)
    report = accelerate(model, weights=weights)
    for mask, right in zip(PADDINGS.values(), expected, strict=True):
        assert distance(logits_of(model, mask), right) < ROUNDING
    assert written(model) == ids
    assert (report.nbytes > 0) == (weights == "packed")
    layers = model.config.num_hidden_layers
    replaced = {
        kind.removeprefix(type(model).__name__[:-11]): n for kind, n in report.replaced.items()
    }
    if name in FAMILIES:
        assert replaced["Attention"] == layers
        assert replaced["RMSNorm"] >= 2 * layers + 1


@pytest.mark.parametrize("options", [{"cache_implementation": "static"}, {"num_beams": 3}], ids=str)
@pytest.mark.parametrize("name", ["llama3.2", "mistral", "qwen3"])
def test_other_ways_of_generating(name, options):
    model = made(name)
    expected = written(model, **options)
    accelerate(model)
    assert written(model, **options) == expected


def test_frequencies_that_depend_on_the_length_do():
    """Dynamic scaling: a text longer than max_position_embeddings has other ones."""
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    rope["original_max_position_embeddings"] = 8
    model = made("llama2", rope_parameters=rope, max_position_embeddings=8)
    expected = logits_of(model)
    short = with_attention(model, "eager", lambda m: m(IDS[:, :6]).logits)
    accelerate(model)
    assert distance(logits_of(model), expected) < ROUNDING
    with torch.inference_mode():
        assert distance(model(IDS[:, :6]).logits, short) < ROUNDING


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_are_as_right_as_before(dtype):
    """Against the same rounded weights in float32."""
    model, exact = made("qwen3", dtype), logits_of(made("qwen3", dtype).float())
    before = logits_of(model)
    accelerate(model)
    after = logits_of(model)
    assert after.dtype is dtype
    assert (after - exact).square().mean() <= 1.2 * (before - exact).square().mean()


def test_the_report_says_what_is_whose():
    model = made("qwen3-moe-dense-window")
    report = accelerate(model)
    assert report.replaced == {
        "Linear": 3 * 4 + 3 + 1,
        "Qwen3MoeAttention": 3,
        "Qwen3MoeMLP": 1,
        "Qwen3MoeRMSNorm": 13,
        "Qwen3MoeRotaryEmbedding": 1,
    }
    assert report.left == {
        "model.embed_tokens": "Embedding",
        "model.layers.0.mlp.experts": "Qwen3MoeExperts",
        "model.layers.0.mlp.gate": "Qwen3MoeTopKRouter",
        "model.layers.2.mlp.experts": "Qwen3MoeExperts",
        "model.layers.2.mlp.gate": "Qwen3MoeTopKRouter",
    }
    lines = str(report).splitlines()
    assert "16 Linear, 3 Qwen3MoeAttention" in lines[0]
    assert "MB of weights beside the model's own" in lines[0]
    assert "  model.layers.*.mlp.experts: Qwen3MoeExperts (2 of them)" in lines
    gelu = made("llama2", hidden_act="gelu")
    expected = logits_of(gelu)
    assert (
        accelerate(gelu).left["model.layers.0.mlp"].startswith("LlamaMLP, its activation is GELU")
    )
    assert distance(logits_of(gelu), expected) < ROUNDING


@pytest.mark.parametrize("originals", ["keep", "release"])
def test_restore_brings_everything_back(originals):
    model = made("llama3.2")
    before, modules = bits(model), dict(model.named_modules())
    expected, attention = logits_of(model), model.config._attn_implementation
    accelerate(model, originals=originals)
    assert not torch.equal(logits_of(model), expected)  # other roundings: ours ran
    restore(model)
    assert dict(model.named_modules()) == modules
    assert same(bits(model), before)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert model.config._attn_implementation == attention
    assert torch.equal(logits_of(model), expected)
    model(IDS).logits.sum().backward()  # and it can be trained
    accelerate(model)  # and accelerated again


def test_released_weights_are_gone():
    """A tied embedding is looked up in what is packed; nobody reads what is not there."""
    model = made("llama3.2")
    expected = logits_of(model)
    report = accelerate(model, originals="release")
    assert model.lm_head.weight.is_meta
    assert model.model.embed_tokens.weight is model.lm_head.weight
    kept = {name for name, p in model.named_parameters() if not p.is_meta}
    assert all(name.endswith(("norm.weight", "layernorm.weight")) for name in kept), kept
    assert "in place of the model's own" in str(report)
    assert "Embedding" in report.replaced
    assert distance(logits_of(model), expected) < ROUNDING
    with pytest.raises(TypeError, match="meta"):
        model.lm_head.weight.numpy()


@pytest.mark.parametrize(("kind", "error"), [("q8_0", 0.05), ("q4_0", 0.8)])
def test_weights_of_few_bits(kind, error):
    sizes = {"hidden_size": 64, "intermediate_size": 96}
    model = made("qwen3", **sizes)
    exact = logits_of(model)
    packed = accelerate(made("qwen3", **sizes)).nbytes
    report = accelerate(model, quantize=kind)
    assert (
        report.nbytes < (0.34 if kind == "q8_0" else 0.19) * packed
    )  # with scales and even panels
    off = (logits_of(model) - exact).square().mean().sqrt() / exact.std()
    assert 1e-4 < off < error
    restore(model)
    assert torch.equal(logits_of(model), exact)


def test_weights_rounded_beside_activations_that_are_not():
    model, rounded = made("llama2"), made("llama2", torch.bfloat16).float()
    expected = logits_of(rounded)
    report = accelerate(model, dtype=torch.bfloat16)
    assert report.nbytes * 2 == sum(
        module.weight.nbytes for module in model.modules() if type(module) is torch.nn.Linear
    )
    # the embedding and the norms are those of the model, unrounded
    for module, source in zip(model.modules(), rounded.modules(), strict=True):
        if type(module) is torch.nn.Embedding:
            module.weight.data.copy_(source.weight)
    assert distance(logits_of(model), expected) < 1e-3
    assert logits_of(model).dtype is torch.float32


def loaded(model, other):
    model.load_state_dict(other.state_dict())


def assigned(model, other):
    model.load_state_dict(bits(other), assign=True)


def copied(model, other):
    with torch.no_grad():
        for own, new in zip(model.parameters(), other.parameters(), strict=True):
            own.copy_(new)


def copied_in_inference_mode(model, other):
    with torch.inference_mode():
        for own, new in zip(model.parameters(), other.parameters(), strict=True):
            own.copy_(new)


def written_through_data(model, other):
    for own, new in zip(model.parameters(), other.parameters(), strict=True):
        own.data.mul_(0).add_(new.data)


def given_other_memory(model, other):
    for own, new in zip(model.parameters(), other.parameters(), strict=True):
        own.data = new.data.clone()


CHANGES = [
    *(loaded, assigned, copied, copied_in_inference_mode, written_through_data, given_other_memory),
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["qwen3", "llama-bias", "phi3"])
def test_weights_that_change_are_seen(name, change):
    """As answers of the model that was accelerated with them."""
    model, other = made(name), made(name)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.copy_(parameter.flip(-1) + 0.1)
    accelerate(model)
    before = logits_of(model)
    change(model, other)
    accelerate(other)
    expected = logits_of(other)
    assert distance(before, expected) > 0.1
    assert torch.equal(logits_of(model), expected)
    assert torch.equal(logits_of(model), expected)


def other_projection(model):
    model.model.layers[0].self_attn.q_proj = torch.nn.Linear(32, 32)


def other_down(model):
    model.model.layers[1].mlp.down_proj = torch.nn.Linear(48, 32, bias=False)


def other_activation(model):
    model.model.layers[1].mlp.act_fn = torch.nn.GELU()


def other_norm(model):
    model.model.layers[2].input_layernorm = torch.nn.LayerNorm(32)


def other_mlp(model):
    model.model.layers[0].mlp = torch.nn.Linear(32, 32)


def other_angles(model):
    class Unturned(torch.nn.Module):
        def forward(self, x, position_ids):
            shape = (*position_ids.shape, 8)
            return torch.ones(shape), torch.zeros(shape)

    model.model.rotary_emb = Unturned()


def exchanged(model):
    """Each is ours, and not the one that its attention was made of."""
    one, other = (model.model.layers[at].self_attn for at in (0, 1))
    one.v_proj, other.v_proj = other.v_proj, one.v_proj


def wrapped(model):
    projection = model.model.layers[1].self_attn.o_proj
    forward = projection.forward
    projection.forward = lambda x: 2 * forward(x)


def another_bias(model):
    model.model.layers[0].mlp.up_proj.bias = torch.nn.Parameter(torch.randn(48))


def turned_in_the_same_memory(model):
    projection = model.model.layers[0].self_attn.q_proj
    projection.weight = torch.nn.Parameter(projection.weight.detach().T)


def another_eps(model):
    model.model.norm.variance_epsilon = 0.5


REPLACEMENTS = [
    *(other_projection, other_down, other_activation, other_norm, other_mlp, other_angles),
    *(exchanged, wrapped, another_bias, turned_in_the_same_memory, another_eps),
]


@pytest.mark.parametrize("options", [{}, {"weights": "shared"}, {"training": True}], ids=str)
@pytest.mark.parametrize("replace", REPLACEMENTS)
def test_what_is_replaced_afterwards_is_used(replace, options):
    model, plain = made("llama2"), made("llama2")
    accelerate(model, **options)
    before = logits_of(model)
    for one in (model, plain):
        torch.manual_seed(0)
        replace(one)
    expected = logits_of(plain)
    assert distance(before, expected) > 1e-3
    assert distance(logits_of(model), expected) < ROUNDING
    if "training" in options:
        gradients = []
        for one in (model, plain):
            one(IDS, labels=IDS).loss.backward()
            gradients.append({name: p.grad for name, p in one.named_parameters()})
        for name, right in gradients[1].items():
            assert (gradients[0][name] - right).norm() <= 1e-4 * right.norm(), name


@pytest.mark.parametrize("options", [{}, {"weights": "shared"}, {"training": True}], ids=str)
def test_adapters_come_and_go(options):
    peft = pytest.importorskip("peft")

    def adapted(model):
        torch.manual_seed(0)
        modules = ["q_proj", "down_proj"]
        lora = peft.LoraConfig(r=4, target_modules=modules, init_lora_weights=False)
        return peft.get_peft_model(model, lora).eval()

    base, expected = logits_of(made("qwen3")), logits_of(adapted(made("qwen3")))
    model = made("qwen3")
    accelerate(model, **options)
    whole = model.model.layers[0].forward.is_whole
    assert whole()
    with_adapter = adapted(model)
    assert distance(logits_of(with_adapter), expected) < ROUNDING
    assert not whole()
    with with_adapter.disable_adapter():
        assert distance(logits_of(with_adapter), base) < ROUNDING
    with_adapter.merge_adapter()
    assert distance(logits_of(with_adapter), expected) < ROUNDING
    with_adapter.unmerge_adapter()
    if "training" in options:
        with_adapter(IDS, labels=IDS).loss.backward()
        assert all(p.grad.abs().sum() > 0 for p in model.parameters() if p.requires_grad)
    assert distance(logits_of(with_adapter.unload()), base) < ROUNDING
    assert whole()
    merged = adapted(model).merge_and_unload()
    assert distance(logits_of(merged), expected) < ROUNDING
    assert whole()


@pytest.mark.parametrize("options", [{"weights": "shared"}, {"dtype": torch.bfloat16}], ids=str)
def test_weights_are_packed_again_as_they_were(options):
    model, other = made("qwen3"), made("qwen3", initializer_range=0.05)
    accelerate(model, **options)
    loaded(model, other)
    accelerate(other, **options)
    assert torch.equal(logits_of(model), logits_of(other))


def test_weights_that_were_released_are_replaced_or_refused():
    """A tied one too: the embedding that was looked up in it is read where it lies now."""
    model, other = made("llama3.2"), made("llama3.2", initializer_range=0.05)
    accelerate(model, originals="release")
    assigned(model, other)
    expected = logits_of(other)
    assert distance(logits_of(model), expected) < ROUNDING
    restore(model)
    assert torch.equal(logits_of(model), expected)

    accelerate(model, originals="release")
    with pytest.warns(UserWarning, match="no-op"):
        loaded(model, made("llama3.2"))
    with pytest.raises(RuntimeError, match=r"^\w+: weight was written, .*assign=True.*restore"):
        logits_of(model)


def test_weights_that_stay_are_packed_once(monkeypatch):
    packed, pack = [], accelerate_module.pack
    monkeypatch.setattr(accelerate_module, "pack", lambda x: packed.append(x.shape) or pack(x))
    model = made("qwen3")
    accelerate(model)
    count = len(packed)
    written(model)
    assert len(packed) == count
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight.mul_(2)
    written(model)
    assert packed[count:] == [tuple(model.model.layers[1].mlp.up_proj.weight.shape)]


def test_what_was_rounded_and_released_cannot_be_had_back():
    model = made("llama2", intermediate_size=64)
    accelerate(model, quantize="q8_0", originals="release")
    before = logits_of(model)
    with pytest.raises(ValueError, match=r"^restore: .*released.*rounded; load it again"):
        restore(model)
    assert torch.equal(logits_of(model), before)


def test_hooks_run():
    """Those on a module that is computed inside another one, set before or after, and removed."""
    model = made("qwen3")
    expected = logits_of(model)
    first, second = model.model.layers[:2]
    inside = [first.self_attn.v_proj, second.mlp.act_fn, second.mlp]
    inputs = []
    model.model.layers[2].input_layernorm.register_forward_pre_hook(
        lambda *a: inputs.append("norm")
    )
    accelerate(model)
    handles = [
        module.register_forward_hook(lambda module, *_: inputs.append(module)) for module in inside
    ]
    assert distance(logits_of(model), expected) < ROUNDING
    assert inputs == [*inside, "norm"]
    for handle in handles:
        handle.remove()
    inputs.clear()
    assert distance(logits_of(model), expected) < ROUNDING
    assert inputs == ["norm"]


def test_transformers_records_what_it_records():
    model = made("qwen3")
    options = {"output_attentions": True, "output_hidden_states": True}
    with torch.inference_mode():
        expected = model(IDS, **options)
        accelerate(model)
        got = model(IDS, **options)
        assert model(IDS, output_attentions=None).attentions is None  # as peft calls it
    for kind in ("attentions", "hidden_states"):
        assert len(got[kind]) == len(expected[kind]) > 2
        for one, other in zip(got[kind], expected[kind], strict=True):
            assert distance(one, other) < ROUNDING


def test_a_model_of_ones_own():
    """Linear layers and norms of any torch.nn.Module; what has another forward stays."""

    class Scaled(torch.nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    model = torch.nn.Sequential(
        torch.nn.Linear(12, 7), torch.nn.RMSNorm(7, eps=1e-5), Scaled(7, 5), torch.nn.RMSNorm(5)
    )
    x = torch.randn(3, 12)
    with torch.inference_mode():
        expected = model(x)
        report = accelerate(model)
        assert report.replaced == {"Linear": 1, "RMSNorm": 1}
        assert report.left == {"2": "Scaled", "3": "RMSNorm"}
        assert torch.allclose(model(x), expected, atol=1e-6)


def test_a_copy_is_accelerated_by_itself():
    model = made("llama2")
    accelerate(model)
    other = copy.deepcopy(model)
    restore(model)
    before = logits_of(other)
    for parameter in model.parameters():
        parameter.data.zero_()
    assert torch.equal(logits_of(other), before)
    restore(other)
    assert distance(logits_of(other), before) < ROUNDING


@pytest.mark.slow
def test_it_compiles_with_breaks():
    model = made("llama2")
    accelerate(model)
    compiled = torch.compile(model, backend="eager")
    with torch.inference_mode():
        assert distance(compiled(IDS).logits, logits_of(model)) < ROUNDING


def test_refusals():
    model = made("llama2")
    for options, message in (
        ({"weights": "copied"}, "weights is 'copied', needs 'packed' or 'shared'"),
        ({"originals": "drop"}, "originals is 'drop', needs 'keep' or 'release'"),
        ({"dtype": torch.bfloat16, "quantize": "q8_0"}, "dtype and quantize exclude each other"),
        ({"weights": "shared", "originals": "release"}, "weights='shared' reads the model's own"),
        ({"quantize": "q4"}, "quantize is 'q4', needs one of q8_0, "),
        (
            {"quantize": "q4_k"},
            r"layers\.0\.self_attn\.q_proj has 32 inputs, q4_k needs .* of 256",
        ),
    ):
        with pytest.raises(ValueError, match=f"^accelerate: .*{message}"):
            accelerate(model, **options)
    with pytest.raises(ValueError, match=r"^restore: the model is not accelerated"):
        restore(model)
    with pytest.raises(ValueError, match=r"^accelerate: weight is on meta, needs the CPU"):
        accelerate(torch.nn.Linear(2, 2, device="meta"))
    accelerate(model)
    with pytest.raises(ValueError, match=r"accelerated already; restore\(model\) first"):
        accelerate(model)
    with pytest.raises(RuntimeError, match=r"^Llama\w+: no gradient: "):
        model(IDS)


def test_dropout_is_refused():
    model = made("llama2", attention_dropout=0.5)
    accelerate(model)
    with pytest.raises(ValueError, match=r"dropout is 0\.5.*model\.eval\(\)"):
        logits_of(model.train())


class Watched(transformers.DynamicCache):
    """A cache whose update is its own: it is called."""

    def update(self, *arguments, **options):
        self.seen = True
        return super().update(*arguments, **options)


def test_the_cache_grows_in_place_and_nothing_kept_from_it_changes():
    model = made("llama2")
    accelerate(model)
    plain = made("llama2")
    caches = [transformers.DynamicCache(config=m.config) for m in (model, plain)]
    kept = []

    def step(ids):
        with torch.inference_mode():
            got, expected = (
                m(ids, past_key_values=cache).logits
                for m, cache in zip((model, plain), caches, strict=True)
            )
        assert distance(got, expected) < ROUNDING
        for ours, theirs in zip(caches[0].layers, caches[1].layers, strict=True):
            assert ours.keys.shape == theirs.keys.shape
            assert torch.allclose(ours.keys, theirs.keys, atol=1e-4)
            assert torch.allclose(ours.values, theirs.values, atol=1e-4)
        kept.extend((layer.keys, layer.keys.clone()) for layer in caches[0].layers)

    step(IDS[:, :6])
    step(IDS[:, 6:7])
    address = caches[0].layers[0].keys.data_ptr()
    for at in range(7, 11):
        step(IDS[:, at : at + 1])
    assert caches[0].layers[0].keys.data_ptr() == address  # no copy
    for cache in caches:
        cache.crop(-3)  # and on with other ids
    step(IDS[:, 12:15])
    branch = copy.deepcopy(caches)
    step(IDS[:, 15:16])
    caches = branch
    step(IDS[:, 17:18])
    for cache in caches:
        cache.reorder_cache(torch.tensor([1, 0]))
    step(IDS[:, 18:19])
    for _ in range(70):  # beyond the memory that was taken
        step(IDS[:, 4:5])
    assert all(torch.equal(tensor, before) for tensor, before in kept)
    watched = Watched(config=model.config)
    with torch.inference_mode():
        model(IDS[:, :4], past_key_values=watched)
        del watched.seen
        model(IDS[:, 4:5], past_key_values=watched)
    assert watched.seen


def test_packed_weights_are_those_of_the_package():
    """One weight for two modules is packed once."""
    model = made("llama3.2")
    accelerate(model, originals="release")
    packed = model.lm_head.forward.held_weight.now()
    assert isinstance(packed, sf.PackedWeight)
    assert model.model.embed_tokens.forward.held_weight.now() is packed
