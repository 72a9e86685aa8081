"""`Trace`: activations by name, layer, glob, TransformerLens' names; in files, for people."""

import copy
import html.parser
import pickle

import numpy as np
import pytest

import simdformer as sf
from checkpoints import GPT2, random_model
from conftest import same_bits
from simdformer.models import trace_names
from simdformer.models.trace import TRANSFORMER_LENS

IDS = np.array([7, 0, 299, 12])


@pytest.fixture(scope="module")
def model():
    return random_model()[0]


@pytest.fixture(scope="module")
def gpt2():
    return random_model(**GPT2)[0]


@pytest.fixture(scope="module")
def trace(model):
    return model.run_with_cache(IDS)[1]


# ---- names ---------------------------------------------------------------------------------------


def test_a_trace_is_a_mapping_in_the_order_of_computation(model, trace):
    assert isinstance(trace, sf.Trace)
    assert list(trace) == trace_names(model.config)
    assert len(trace) == len(list(trace)) == len({**trace})
    assert "layers.1.attn.pattern" in trace
    assert "layers.9.attn.pattern" not in trace
    assert 2 in trace
    assert 3 not in trace
    assert trace.num_layers == 3


def test_a_name_and_a_layer_are_a_place(trace):
    for layer in range(3):
        for name, array in trace[layer].items():
            assert array is trace[f"layers.{layer}.{name}"]
            assert array is trace[name, layer] is trace[layer, name]
    assert trace["pattern", 1] is trace["layers.1.attn.pattern"]
    assert trace["gate", np.int64(2)] is trace["layers.2.mlp.gate"]
    assert trace["resid_post", -1] is trace["layers.2.resid_post"]
    assert list(trace[-1]) == list(trace[2])


def test_a_glob_gives_a_trace_again(trace):
    few = trace["layers.*.mlp.out"]
    assert list(few) == [f"layers.{layer}.mlp.out" for layer in range(3)]
    assert few["layers.2.mlp.out"] is trace["layers.2.mlp.out"]
    assert few.ids is trace.ids


def test_names_of_transformer_lens_are_understood(model):
    _, trace = model.run_with_cache(IDS, trace_names(model.config, on_request=True))
    for theirs, ours in TRANSFORMER_LENS.items():
        if ours == "pos_embed":  # of gpt2
            continue
        if "{}" in theirs:
            assert trace[theirs.format(1)] is trace[ours.format(1)]
            assert list(trace[theirs.format("*")]) == list(trace[ours.format("*")])
        else:
            assert trace[theirs] is trace[ours]
    _, one = model.run_with_cache(IDS, "blocks.2.attn.hook_pattern")
    assert list(one) == ["layers.2.attn.pattern"]
    changed = model(IDS, edit={"blocks.*.attn.hook_z": np.zeros(())})
    assert same_bits(changed, model(IDS, edit={"layers.*.attn.z": np.zeros(())}))


# ---- what no kernel computes ---------------------------------------------------------------------


def test_gpt2_has_the_names_that_a_course_on_it_uses(gpt2):
    _, trace = gpt2.run_with_cache(IDS)
    assert list(trace) == trace_names(gpt2.config)
    assert list(trace)[:3] == ["embed", "pos_embed", "layers.0.resid_pre"]
    assert not [name for name in trace if "gate" in name]
    np.testing.assert_allclose(
        trace["hook_embed"] + trace["hook_pos_embed"], trace["blocks.0.hook_resid_pre"], rtol=1e-6
    )
    before = trace["blocks.2.mlp.hook_pre"]
    assert before is trace["layers.2.mlp.up"]
    after = sf.gelu(before, approximate="tanh")
    np.testing.assert_allclose(trace["blocks.2.mlp.hook_post"], after, rtol=1e-6)
    _, some = gpt2.run_with_cache(IDS, "blocks.*.mlp.hook_pre")
    assert list(some) == [f"layers.{layer}.mlp.up" for layer in range(3)]
    moved = gpt2(IDS, edit={"hook_pos_embed": lambda x: x[::-1]})
    assert np.abs(moved - gpt2(IDS)).max() > 0.1


def test_what_is_there_on_request_is_asked_for_by_name(model, trace):
    extra = {f"layers.{layer}.attn.result" for layer in range(3)} | {"final_norm_scale"}
    assert set(trace_names(model.config, on_request=True)) - set(trace) == extra
    for usual in (None, "*", "layers.*", "layers.*.attn.*", "final_norm*"):
        assert extra.isdisjoint(model.run_with_cache(IDS, usual)[1])
    for glob in ("*.result", "*scale", "layers.1.attn.resul?", "blocks.*.attn.hook_result"):
        names = set(model.run_with_cache(IDS, glob)[1])
        assert names
        assert names <= extra
    _, both = model.run_with_cache(IDS, ["*", "final_norm_scale", "layers.0.attn.result"])
    assert list(both)[-3:] == ["final_norm_scale", "final_norm", "logits"]
    assert list(both[0])[9:12] == ["attn.z", "attn.result", "attn.out"]


@pytest.mark.parametrize("ids", [IDS, np.stack([IDS, IDS[::-1]])])
@pytest.mark.parametrize("changes", [{}, {"wo_bias": True, "qkv_bias": True}])
def test_results_are_what_each_head_writes(ids, changes):
    model, weights = random_model(**changes)
    config = model.config
    logits, trace = model.run_with_cache(ids, ["*", "*.result"])
    assert same_bits(logits, model(ids))
    for layer in range(3):
        z, results = trace["z", layer], trace["result", layer]
        assert results.shape == (*ids.shape, config.num_heads, config.hidden_size)
        columns = weights[f"layers.{layer}.wo"].reshape(-1, config.num_heads, config.head_dim)
        by_hand = np.einsum("...hd,ehd->...he", z, columns.astype(np.float64))
        np.testing.assert_allclose(results, by_hand, rtol=1e-5, atol=1e-5)
        bias = weights.get(f"layers.{layer}.bo", 0)
        np.testing.assert_allclose(results.sum(-2) + bias, trace["attn.out", layer], atol=1e-5)


@pytest.mark.parametrize("name", ["model", "gpt2"])
def test_the_scale_is_what_the_final_norm_divides_by(request, name):
    model, bias = request.getfixturevalue(name), 0
    logits, trace = model.run_with_cache(IDS, ["*", "final_norm_scale"])
    assert same_bits(logits, model(IDS))
    stream = trace["resid_post", -1].astype(np.float64)
    if name == "gpt2":  # a LayerNorm
        stream, bias = stream - stream.mean(-1, keepdims=True), model.weights.final_norm_bias
    scale = np.sqrt((stream**2).mean(-1, keepdims=True) + model.config.norm_eps)
    np.testing.assert_allclose(trace["final_norm_scale"], scale, rtol=1e-6)
    normed = stream / trace["final_norm_scale"] * model.weights.final_norm
    np.testing.assert_allclose(trace["final_norm"] - bias, normed, rtol=1e-5, atol=1e-6)
    _, halved = model.run_with_cache(IDS, edit={"final_norm_scale": lambda scale: scale / 2})
    np.testing.assert_allclose(halved["final_norm"] - bias, 2 * normed, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("layers.1.attn.patern", "near are layers.1.attn.pattern"),
        ("nothing.*", "no activation is called 'nothing.*'; near are"),
        (("patern", 1), "near are attn.pattern"),
        (7, "nothing is known of layer 7, needs 0 to 2"),
        (-4, "nothing is known of layer -4"),
        (("pattern", 7), "nothing is known of layer 7"),
        (("pattern", 1, 2), "is no place, needs \\(name, layer\\)"),
        (("pattern", "mlp"), "is no place"),
        (True, "True is no name, needs a name, a glob or a layer"),
        (None, "None is no name"),
    ],
)
def test_what_does_not_exist_is_refused(trace, key, message):
    with pytest.raises(KeyError, match=f"trace: .*{message}"):
        trace[key]
    assert key not in trace


def test_a_mapping_beside_it_makes_a_trace_again(trace):
    both = trace | {"mine": np.ones(3)}
    assert isinstance(both, sf.Trace)
    assert list(both) == [*trace, "mine"]
    assert both.ids is trace.ids
    assert "mine" not in trace


def test_a_copy_and_a_pickle_are_the_same(trace):
    for again in (copy.copy(trace), pickle.loads(pickle.dumps(trace))):
        assert list(again) == list(trace)
        assert all(same_bits(again[name], trace[name]) for name in trace)
        assert repr(again) == repr(trace)


# ---- text ----------------------------------------------------------------------------------------


def test_a_language_model_tells_the_tokens(demo):
    text = "Mia has a red kite."
    logits, trace = demo.run_with_cache(text, "embed")
    ids = demo.tokenizer.encode(text)
    assert trace.ids.tolist() == ids
    assert trace.tokens == ["<|begin_of_text|>", "Mia", " has", " a", " red", " kite", "."]
    assert same_bits(logits, demo.run_with_cache(ids)[0])
    assert demo.run_with_cache(ids, "embed")[1].tokens == trace.tokens
    assert demo.run_with_cache([ids, ids], "embed")[1].tokens == [trace.tokens] * 2


def test_text_is_read_wherever_ids_are(demo):
    texts = ["Mia has a red kite.", "Tom has"]
    ids = [demo.tokenizer.encode(text) for text in texts]
    for text, own in zip(texts, ids, strict=True):
        assert same_bits(demo(text), demo(own))
        assert same_bits(demo(text, logits_to_keep=1), demo(own)[-1:])
    assert all(same_bits(a, demo(b)) for a, b in zip(demo(texts), ids, strict=True))
    logits, traces = demo.run_with_cache(texts, "embed", edit={"embed": lambda x: x * 2})
    assert [each.ids.tolist() for each in traces] == ids
    for one, own in zip(logits, ids, strict=True):
        assert same_bits(one, demo(own, edit={"embed": lambda x: x * 2}))
    cache = demo.new_cache()
    assert same_bits(demo("Mia has a red kite.", cache), demo(ids[0]))
    with pytest.raises(ValueError, match="model: cache holds one text that goes on, found is a li"):
        demo(texts, cache)


def test_text_needs_a_tokenizer(model):
    nameless = sf.LanguageModel(model)
    for read in (nameless, nameless.run_with_cache, nameless.loss):
        with pytest.raises(ValueError, match="model: text needs a tokenizer, and none was found"):
            read("text")
    assert nameless.run_with_cache(IDS)[1].tokens is None


# ---- edits by arrays -----------------------------------------------------------------------------


def test_an_array_takes_the_place_of_an_activation(model, trace):
    other = model.run_with_cache(IDS[::-1].copy())[1]
    name = "layers.1.resid_post"
    edited, seen = model.run_with_cache(IDS, edit={name: other[name]})
    assert same_bits(seen[name], other[name])
    assert same_bits(edited, model(IDS, edit={name: lambda x: other[name]}))
    assert same_bits(model(IDS, edit={"embed": trace["embed"].astype(np.float64)}), model(IDS))
    assert same_bits(
        model(IDS, edit={"layers.*.mlp.out": 0}),
        model(IDS, edit={"layers.*.mlp.out": lambda x: x * 0}),
    )


def test_an_array_that_does_not_fit_is_refused(model):
    with pytest.raises(ValueError, match=r"edit: the array for 'embed' has shape \(3,\), needs"):
        model(IDS, edit={"embed": np.zeros(3)})
    with pytest.raises(TypeError, match="edit: 'embed' is None, needs an array, or a function"):
        model(IDS, edit={"embed": None})


# ---- files ---------------------------------------------------------------------------------------


def test_a_file_gives_back_what_was_saved(demo, trace, tmp_path):
    tokens = demo.run_with_cache("Mia\n has 你 \0", ["embed", "*.pattern"])[1]
    for each in (trace, tokens, demo.run_with_cache([[1, 2], [3, 4]], "embed")[1]):
        each.save(tmp_path / "a trace")
        again = sf.Trace.load(str(tmp_path / "a trace"))
        assert list(again) == list(each)
        assert all(same_bits(again[name], each[name]) for name in each)
        assert same_bits(again.ids, each.ids)
        assert (again.tokens, repr(again)) == (each.tokens, repr(each))


def test_a_file_of_another_kind_is_refused(trace, tmp_path):
    file = tmp_path / "file"
    trace.save(file)
    whole = file.read_bytes()
    np.savez(tmp_path / "other.npz", a=np.ones(2))
    np.save(tmp_path / "array.npy", np.ones(2))
    np.savez(tmp_path / "pickle.npz", ids=np.array([object()]), model=np.array(""))
    for content in (b"", b"text", whole[:2000], whole[:-30], whole[:3000] + whole[3100:]):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"Trace.load: .*file is no file that Trace.save wr"):
            sf.Trace.load(file)
    for name in ("other.npz", "array.npy", "pickle.npz"):
        with pytest.raises(ValueError, match=f"Trace.load: .*{name} is no file that Trace.save"):
            sf.Trace.load(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        sf.Trace.load(tmp_path / "missing")


# ---- for people ----------------------------------------------------------------------------------


def test_a_repr_is_one_line(trace):
    size = sum(array.nbytes for array in trace.values())
    assert trace.nbytes == size
    expected = f"Trace(3 layers of 4 heads, 4 tokens, {len(trace)} names, {size / 1e6:.1f} MB)"
    assert repr(trace) == expected


class Cells(html.parser.HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.rows = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        if tag == "tr":
            self.rows.append([])

    def handle_data(self, data):
        if self.rows:
            self.rows[-1].append(data)


def test_html_is_a_table_by_layer(trace):
    page = (trace | {"<script>": np.ones(2)})._repr_html_()
    assert "<script>" not in page
    head, *rows = Cells(page).rows
    assert head == ["name", "shape", "0", "1", "2"]
    told = {name: cells for name, *cells in rows}
    assert list(told)[:3] == ["embed", "resid_pre", "attn_norm"]
    shape, *sizes = told["attn.pattern"]
    assert shape == "4 × 4 × 4"
    expected = [np.sqrt(np.mean(trace["pattern", layer] ** 2)) for layer in range(3)]
    np.testing.assert_allclose([float(size) for size in sizes], expected, rtol=1e-2)
    assert "nan" not in told["attn.scores"]


def test_a_part_of_a_trace_has_a_table_too(trace):
    for part in (trace[1], trace["layers.1.*"], trace["embed"][None], sf.Trace({}, ids=IDS)):
        assert isinstance(part, np.ndarray) or part._repr_html_().count("<table>") == 1
