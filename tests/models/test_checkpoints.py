"""Checkpoints of Hugging Face, Meta and MiniMind: the models in them compute what transformers
computes, and what is no good is refused."""

import json
import sys
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
import torch
import transformers

import simdformer as sf
import tiny_models
from checkpoints import agree
from checkpoints import told as refusal
from simdformer import cli
from simdformer.checkpoints import CheckpointError, read_checkpoint
from simdformer.models import Transformer, trace_names
from simdformer.models.progress import Progress

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
IDS = np.random.default_rng(11).integers(0, 96, (2, 40))


def transformers_model(path):
    """transformers' own model of that directory, float32 arithmetic."""
    return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """saved(name, dtype) is the directory of a model, made once."""
    made = {}

    def saved(name, dtype=torch.float32, **options):
        key = (name, dtype, *options.items())
        if key not in made:
            made[key] = tmp_path_factory.mktemp(name)
            tiny_models.make(name).to(dtype).save_pretrained(made[key], **options)
        return made[key]

    return saved


@pytest.fixture
def copy_of(saved, tmp_path):
    """copy_of(name) is a directory that a test may damage."""

    def copy_of(name, **options):
        for file in saved(name, **options).iterdir():
            (tmp_path / file.name).write_bytes(file.read_bytes())
        return tmp_path

    return copy_of


# ---- the same as transformers --------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", tiny_models.MODELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_logits_and_greedy_ids_are_those_of_transformers(saved, name, dtype):
    folder = saved(name, dtype)
    theirs, ours = transformers_model(folder), sf.from_pretrained(folder)
    needed = tiny_models.logits(theirs, IDS)
    for isa in sf.isas():
        with sf.use_isa(isa):
            agree(ours(IDS), needed)
            agree(ours(IDS[1]), needed[1])
    prompt = IDS[0, :9]
    assert ours.generate(prompt, max_new_tokens=24) == tiny_models.greedy(theirs, prompt, 24)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", tiny_models.MODELS)
def test_hidden_states_and_patterns_are_those_of_transformers(saved, name):
    folder = saved(name)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        needed = theirs(torch.as_tensor(IDS), output_hidden_states=True, output_attentions=True)
    ours = sf.from_pretrained(folder)
    logits, trace = ours.run_with_cache(IDS)
    assert set(trace) == set(trace_names(ours.config))
    agree(logits, needed.logits)
    for layer in range(3):
        agree(trace[f"layers.{layer}.resid_pre"], needed.hidden_states[layer])
        agree(trace[f"layers.{layer}.attn.pattern"], needed.attentions[layer])
    agree(trace["final_norm"], needed.hidden_states[3])


def test_weights_keep_the_dtype_of_the_file(saved):
    folder = saved("qwen3", torch.bfloat16)
    checkpoint = read_checkpoint(folder)
    assert {tensor.dtype for tensor in checkpoint.weights.values()} == {BFLOAT16}
    kept, converted = sf.from_pretrained(folder), sf.from_pretrained(folder, dtype="float32")
    assert kept.transformer.weights.layers[0].wo.dtype == BFLOAT16
    assert converted.transformer.weights.layers[0].wo.dtype == np.float32
    agree(kept(IDS), converted(IDS))


@pytest.mark.parametrize("name", ["llama3.1", "qwen2-tied-yarn"])
def test_shards_are_one_checkpoint(saved, name):
    folder = saved(name, max_shard_size="20KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    np.testing.assert_array_equal(
        sf.from_pretrained(folder)(IDS), sf.from_pretrained(saved(name))(IDS)
    )
    (folder / "model.safetensors.index.json").rename(folder / "index.away")
    try:
        assert read_checkpoint(folder).weights.keys() == read_checkpoint(saved(name)).weights.keys()
    finally:
        (folder / "index.away").rename(folder / "model.safetensors.index.json")


def test_one_file_is_a_checkpoint_too(saved):
    folder = saved("qwen3")
    alone = read_checkpoint(folder / "model.safetensors")
    assert alone.config == read_checkpoint(folder).config
    assert alone.format.name == "huggingface"


def test_an_lm_head_that_is_the_embedding_is_ignored_when_tied(copy_of):
    from safetensors.torch import load_file, save_file

    folder = copy_of("llama3.2")
    file = folder / "model.safetensors"
    expected = sf.from_pretrained(folder)(IDS)
    tensors = load_file(file)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    save_file(tensors, file)
    np.testing.assert_array_equal(sf.from_pretrained(folder)(IDS), expected)
    tensors["lm_head.weight"][0, 0] += 1
    save_file(tensors, file)
    assert "lm_head.weight in model.safetensors is not the embedding" in refusal(folder)


def old_dialect(config):
    """As transformers 4 wrote it, with what is at its usual value left out."""
    parameters = config.pop("rope_parameters")
    if tiny_models.LOCAL in parameters:
        config["rope_local_base_freq"] = parameters[tiny_models.LOCAL]["rope_theta"]
        config["sliding_window_pattern"] = 2
        parameters = parameters[tiny_models.GLOBAL]
    if "partial_rotary_factor" in parameters:
        config["partial_rotary_factor"] = parameters.pop("partial_rotary_factor")
    config["rope_theta"] = parameters.pop("rope_theta")
    kind = parameters.pop("rope_type")
    parameters.pop("type", None)
    config["rope_scaling"] = None if kind == "default" else parameters | {"type": kind}
    for name in ("layer_types", "dtype"):
        config.pop(name, None)
    if config["head_dim" if "head_dim" in config else "hidden_size"] == 8:
        config.pop("head_dim")
    if config["rope_theta"] == 10000:
        config.pop("rope_theta")
    if config["num_key_value_heads"] == 4:
        config.pop("num_key_value_heads")


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in tiny_models.MODELS
        if "gpt2" not in name and ("window" not in name or name == "qwen2-window")
    ],
)
def test_the_old_dialect_of_configs_says_the_same(copy_of, name):
    folder = copy_of(name)
    new = read_checkpoint(folder).config
    tiny_models.edit_json(folder / "config.json", old_dialect)
    old = read_checkpoint(folder).config
    drop = {"type", "rope_type"}
    assert {k: v for k, v in (old.rope_scaling or {}).items() if k not in drop} == {
        k: v for k, v in (new.rope_scaling or {}).items() if k not in drop
    }
    assert {k: v for k, v in vars(old).items() if k != "rope_scaling"} == {
        k: v for k, v in vars(new).items() if k != "rope_scaling"
    }
    agree(sf.from_pretrained(folder)(IDS), tiny_models.logits(tiny_models.make(name), IDS))


@pytest.mark.parametrize(
    ("in_config", "in_generation", "expected"),
    [
        (None, None, ()),
        (5, None, (5,)),
        ([5, 7], None, (5, 7)),
        (5, [7, 9, 7], (7, 9)),
        (5, 8, (8,)),
        ([5, 4096], None, (5,)),  # past the vocabulary
    ],
)
def test_ids_that_end_a_text(copy_of, in_config, in_generation, expected):
    folder = copy_of("llama3")
    tiny_models.edit_json(
        folder / "config.json", lambda config: config | {"eos_token_id": in_config}
    )
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": in_generation}))
    assert read_checkpoint(folder).eos_ids == expected
    assert sf.from_pretrained(folder).eos_ids == expected


def test_generation_ends_where_the_checkpoint_says(copy_of):
    folder = copy_of("llama3")
    ids = sf.from_pretrained(folder).generate(IDS[0, :5], max_new_tokens=12)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [ids[4]]}))
    stopped = sf.from_pretrained(folder).generate(IDS[0, :5], max_new_tokens=12)
    assert stopped == ids[: ids.index(ids[4])]


# ---- Meta ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shards", "embed_axis", "changes"),
    [
        ("llama2", 1, 0, {"vocab_size": -1, "n_kv_heads": None, "rope_theta": None}),
        ("llama2", 2, 1, {"vocab_size": -1, "n_kv_heads": None, "rope_theta": None}),
        ("llama3", 1, 0, {}),
        ("llama3", 2, 0, {}),
    ],
)
def test_metas_format_holds_the_same_model(tmp_path, name, shards, embed_axis, changes):
    model = tiny_models.make(name)
    params = tiny_models.meta_params(**changes)
    folder = tiny_models.save_meta(tmp_path, model, params, shards, embed_axis)
    ours = sf.from_pretrained(folder)
    assert (ours.config.rope_layout, ours.config.tie_embeddings) == ("interleaved", False)
    agree(ours(IDS), tiny_models.logits(model, IDS))
    prompt = IDS[1, :9]
    assert ours.generate(prompt, max_new_tokens=24) == tiny_models.greedy(model, prompt, 24)
    # a shard named beside its params.json stands for all of them
    file = folder / "consolidated.00.pth"
    np.testing.assert_array_equal(sf.from_pretrained(file)(IDS), ours(IDS))


def test_metas_rope_of_llama_3_1(tmp_path):
    scaling = tiny_models.LLAMA3 | {"original_max_position_embeddings": 8192}
    model = tiny_models.make("llama3", rope_parameters=scaling, head_dim=32)
    params = tiny_models.meta_params(use_scaled_rope=True)
    with pytest.raises(
        CheckpointError, match=r"misshapen: layers\.0\.attention\.wq\.weight \(128, 32\) \["
    ):  # head_dim is 8 here
        read_checkpoint(tiny_models.save_meta(tmp_path, model, params))
    model = tiny_models.make("llama3", rope_parameters=scaling)
    ours = sf.from_pretrained(tiny_models.save_meta(tmp_path, model, params))
    agree(ours(IDS), tiny_models.logits(model, IDS))
    scaling.pop("rope_theta")
    assert ours.config.rope_scaling == scaling
    assert ours.config.max_seq_len == 131072


def test_params_may_name_the_factors_of_the_scaling(tmp_path):
    """Hugging Face's configs of Llama 3.2 say 32 where Meta's own code has 8."""
    scaling = tiny_models.LLAMA3 | {"original_max_position_embeddings": 8192, "factor": 32.0}
    model = tiny_models.make("llama3", rope_parameters=scaling | {"high_freq_factor": 2.0})
    params = tiny_models.meta_params(
        use_scaled_rope=True, rope_scaling_factor=32, rope_high_freq_factor=2.0
    )
    ours = sf.from_pretrained(tiny_models.save_meta(tmp_path, model, params))
    assert ours.config.rope_scaling["factor"] == 32
    agree(ours(IDS), tiny_models.logits(model, IDS))
    del params["rope_scaling_factor"]
    eight = sf.from_pretrained(tiny_models.save_meta(tmp_path, model, params))
    assert np.abs(eight(IDS) - ours(IDS)).max() > 1e-3


def test_params_may_say_how_long_a_text_may_be(tmp_path):
    model = tiny_models.make("llama3")
    for changes, expected in (({}, 8192), ({"max_seq_len": 77}, 77)):
        params = tiny_models.meta_params(**changes)
        folder = tiny_models.save_meta(tmp_path, model, params)
        assert read_checkpoint(folder).config.max_seq_len == expected
    with pytest.raises(ValueError, match="78 ids are more than max_seq_len = 77"):
        sf.from_pretrained(folder)(np.zeros(78, int))


def test_loading_needs_memory_for_a_few_rows_besides_the_model(tmp_path, monkeypatch):
    monkeypatch.setattr("simdformer.models.packing.PIECE_BYTES", 1 << 14)
    model = tiny_models.make("llama3", vocab_size=4096)
    params = tiny_models.meta_params(vocab_size=4096)
    folder = tiny_models.save_meta(tmp_path, model, params, shards=2)
    for dtype in (None, "float16"):
        checkpoint = read_checkpoint(folder)
        largest = max(tensor.nbytes for tensor in checkpoint.weights.values())
        assert largest == 4096 * 32 * 4
        tracemalloc.start()
        try:
            with sf.num_threads(2):
                Transformer(checkpoint.config, checkpoint.weights, dtype=dtype)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 0.6 * largest  # the panels themselves are none of Python's memory


def test_a_tied_embedding_lies_in_memory_once(tmp_path):
    tiny_models.make("llama3.2").save_pretrained(tmp_path)
    for dtype in ("float32", "bfloat16", "float16"):
        weights = sf.from_pretrained(tmp_path, dtype).transformer.weights
        assert weights.embed is weights.lm_head
        assert weights.embed.dtype.name == dtype


# ---- MiniMind ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def minimind(tmp_path_factory):
    """minimind-3 at its widths, two of its eight layers: transformers' Qwen3, and the files."""
    config = {
        "hidden_size": 768,
        "num_hidden_layers": 2,
        "vocab_size": 6400,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 96,
        "hidden_act": "silu",
        "intermediate_size": 2432,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
    }
    rope = {"rope_type": "default", "rope_theta": 1e6}
    model = tiny_models.randomise(
        transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**config, rope_parameters=rope))
    )
    model = tiny_models.rounded(model, torch.float16)
    folder = tmp_path_factory.mktemp("minimind")
    state = {name: tensor.half() for name, tensor in model.state_dict().items()}
    torch.save(state, folder / "full_sft_768.pth")
    own = {"model_type": "minimind", "architectures": ["MiniMindForCausalLM"], "use_moe": False}
    own |= {"rope_theta": 1e6, "rope_scaling": None, "bos_token_id": 1, "eos_token_id": 2}
    own |= {"dropout": 0.0, "flash_attn": True, "num_experts": 4, "inference_rope_scaling": False}
    return model, folder, config | own


def test_minimind_is_transformers_qwen3(minimind):
    model, folder, config = minimind
    file = folder / "full_sft_768.pth"
    assert refusal(file) == (
        f"{file}: found no config.json beside it, needs one, or config=, because the number "
        "of heads does not follow from the tensors"
    )
    ours = sf.from_pretrained(file, config=config)
    ids = np.random.default_rng(3).integers(0, 6400, 24)
    agree(ours(ids), tiny_models.logits(model, ids)[0])
    assert ours.generate(ids, max_new_tokens=8) == tiny_models.greedy(model, ids, 8)
    assert ours.eos_ids == (2,)
    assert ours.config.qk_norm
    assert ours.transformer.weights.layers[0].wo.dtype == np.float16


def test_minimind_finds_its_config(minimind, tmp_path):
    _, folder, config = minimind
    file = folder / "full_sft_768.pth"
    elsewhere = tmp_path / "elsewhere.json"
    elsewhere.write_text(json.dumps(config))
    expected = read_checkpoint(file, config=config)
    assert expected.format.name == "minimind"
    assert read_checkpoint(file, config=elsewhere).config == expected.config
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.pth").symlink_to(file)
    for path in (tmp_path, tmp_path / "model.pth"):
        assert read_checkpoint(path).config == expected.config
    config = config | {"use_moe": True}
    assert refusal(folder, lambda _: read_checkpoint(file, config=config)) == (
        f"{folder}: config: found num_experts_per_tok = None, needs a whole number > 0"
    )


# ---- which format --------------------------------------------------------------------------------


def test_two_formats_in_one_directory_ask_for_one(copy_of):
    folder = copy_of("llama3")
    model = tiny_models.make("llama3")
    tiny_models.save_meta(folder, model, tiny_models.meta_params())
    message = refusal(folder)
    assert message == (
        f"{folder}: found checkpoints of 2 formats, needs one; say which one to read: "
        'format="meta" or format="huggingface"'
    )
    for format, layout in (("meta", "interleaved"), ("huggingface", "half")):
        checkpoint = read_checkpoint(folder, format=format)
        assert (checkpoint.format.name, checkpoint.config.rope_layout) == (format, layout)
        agree(sf.from_pretrained(folder, format=format)(IDS), tiny_models.logits(model, IDS))
    with pytest.raises(ValueError, match="format is 'onnx', needs one of meta, huggingface"):
        read_checkpoint(folder, format="onnx")
    assert "needs none: a meta checkpoint has its config inside" in refusal(
        folder, format="meta", config={}
    )


def test_the_command_line_asks_for_a_format_too(copy_of, capsys):
    folder = copy_of("llama3")
    tiny_models.save_meta(folder, tiny_models.make("llama3"), tiny_models.meta_params())
    assert cli.main(["info", str(folder)]) == 2
    assert 'say which one to read: format="meta"' in capsys.readouterr().err
    for format in ("meta", "huggingface"):
        assert cli.main(["info", str(folder), "--format", format]) == 0
        assert f"format             {format}\n" in capsys.readouterr().out
    assert cli.main(["run", str(folder), "a", "--format", "meta"]) == 2
    assert "no tokenizer was found beside it" in capsys.readouterr().err


def test_files_of_pytorch_beside_safetensors_are_no_second_checkpoint(copy_of):
    folder = copy_of("llama3")
    for name in ("pytorch_model.bin", "training_args.bin", "optimizer.bin"):
        (folder / name).write_bytes(b"")
    assert read_checkpoint(folder).format.name == "huggingface"


def test_a_directory_without_a_checkpoint_says_what_is_needed(tmp_path):
    message = refusal(tmp_path)
    assert message.startswith(f"{tmp_path}: found no checkpoint among [], needs params.json ")
    (tmp_path / "config.json").write_text("{}")
    assert "among ['config.json']" in refusal(tmp_path)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_checkpoint(tmp_path / "nowhere")
    assert "give the directory that it is in" in refusal(tmp_path / "config.json")


# ---- configs that are no good --------------------------------------------------------------------


def test_windows_of_qwen_need_their_rule(copy_of):
    folder = copy_of("qwen2-window")
    expected = read_checkpoint(folder).config.sliding_window
    assert expected == (None, 5, 5)
    tiny_models.edit_json(folder / "config.json", lambda config: config.pop("layer_types") and None)
    assert read_checkpoint(folder).config.sliding_window == expected
    change = {"max_window_layers": None}
    tiny_models.edit_json(folder / "config.json", lambda config: config | change)
    assert "max_window_layers = None, needs a whole number >= 0" in refusal(folder)


def test_shards_that_do_not_belong_together_are_refused(tmp_path):
    model = tiny_models.make("llama3")
    folder = tiny_models.save_meta(tmp_path, model, tiny_models.meta_params(), shards=2)
    first, second = (folder / f"consolidated.0{number}.pth" for number in (0, 1))
    good = torch.load(second)

    def refused(change):
        tensors = dict(good)
        change(tensors)
        torch.save(tensors, second)
        return refusal(folder)

    assert "disagreement with consolidated.00.pth on 'norm.weight'" in refused(
        lambda tensors: tensors.pop("norm.weight")
    )
    assert "tensor 'norm.weight': found in the shards" in refused(
        lambda tensors: tensors.update({"norm.weight": tensors["norm.weight"] + 1})
    )
    name = "layers.0.attention.wq.weight"
    for wrong in (good[name].half(), good[name][:, :8].clone(), good[name][0].clone()):
        message = refused(lambda tensors, wrong=wrong: tensors.update({name: wrong}))
        assert message.startswith(f"{first}: tensor {name!r}: found in the shards")
    second.rename(folder / "consolidated.02.pth")
    assert "needs consolidated.01.pth too" in refusal(folder)


def test_weights_that_are_no_floats_are_refused(tmp_path):
    model = tiny_models.make("llama3")
    folder = tiny_models.save_meta(tmp_path, model, tiny_models.meta_params())
    file = folder / "consolidated.00.pth"
    tensors = torch.load(file) | {"norm.weight": torch.ones(32, dtype=torch.int32)}
    torch.save(tensors, file)
    assert refusal(folder) == (
        f"{folder / 'params.json'}: found tensors that do not fit it: no floats: norm.weight int32 "
        "[final_norm] in consolidated.00.pth"
    )


def test_names_of_ours_in_a_file_are_left_over(copy_of):
    from safetensors.torch import load_file, save_file

    folder = copy_of("llama3")
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors["embed"] = tensors.pop("model.embed_tokens.weight")
    tensors["new\nline"] = torch.ones(2)
    save_file(tensors, file)
    message = refusal(folder)
    assert "missing: model.embed_tokens.weight (96, 32) [embed] in model.safetensors" in message
    left_over = "embed (96, 32) in model.safetensors; 'new\\nline' (2,) in model.safetensors"
    assert f"left over: {left_over}" in message


@pytest.mark.parametrize(
    ("dtype", "activations", "message"),
    [
        (torch.float64, "float32", "weights are float64, needs .* beside activations of float32;"),
        (torch.float16, "bfloat16", "weights are float16, needs .* beside activations of bfloat16"),
        (torch.float32, "int32", "activations is int32, needs float32, bfloat16 or float16"),
    ],
)
def test_dtypes_that_no_kernel_takes_are_refused(saved, dtype, activations, message):
    with pytest.raises(TypeError, match=message):
        sf.from_pretrained(saved("llama3", dtype), activations=activations)
    if activations != "int32":
        sf.from_pretrained(saved("llama3", dtype), dtype=activations, activations=activations)(IDS)


# ---- the progress bar ----------------------------------------------------------------------------


@pytest.fixture
def seconds(monkeypatch):
    """seconds[0] is what the clock says to the progress bar."""
    now = [100.0]
    monkeypatch.setattr("simdformer.models.progress.time.monotonic", lambda: now[0])
    return now


def test_a_bar_is_drawn_when_loading_takes_longer_than_a_second(seconds, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with Progress("loading", 100) as quick:
        quick.advance(60)
        seconds[0] += 0.9
        quick.advance(40)
    assert capsys.readouterr() == ("", "")
    with Progress("loading", 100) as slow:
        slow.advance(20)
        seconds[0] += 1.1
        slow.advance(20)
        assert slow.bar.n == 40
        slow.advance(60)
        assert (slow.bar.n, slow.bar.total) == (100, 100)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "loading:  40%" in captured.err


def test_no_bar_is_drawn_into_a_file(seconds, capsys):
    with Progress("loading", 100) as slow:
        seconds[0] += 1.1
        slow.advance(100)
    assert capsys.readouterr() == ("", "")


def test_without_tqdm_there_is_no_bar(seconds, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with Progress("loading", 100) as slow:
        for _ in range(3):
            seconds[0] += 2
            slow.advance(20)
    assert capsys.readouterr() == ("", "")


def test_loading_counts_every_byte(saved, monkeypatch):
    seen = []

    class Seen(Progress):
        def __exit__(self, *error):
            seen.append((self.done, self.total))

    monkeypatch.setattr("simdformer.models.weights.Progress", Seen)
    for name in ("llama3", "llama3.2"):
        sf.from_pretrained(saved(name))
    assert all(done == total for done, total in seen)
    assert len(seen) == 2


# ---- memory --------------------------------------------------------------------------------------


def test_info_shows_the_budget_of_every_format(saved, minimind, tmp_path, capsys):
    model = tiny_models.make("llama3")
    metas = tiny_models.save_meta(tmp_path, model, tiny_models.meta_params(), shards=2)
    _, folder, config = minimind
    (folder / "config.json").write_text(json.dumps(config))
    try:
        shown = {}
        for format, path in (
            ("huggingface", saved("llama3")),
            ("meta", metas),
            ("minimind", folder),
        ):
            assert cli.main(["info", str(path)]) == 0
            shown[format] = capsys.readouterr().out
            assert f"format             {format}\n" in shown[format]
    finally:
        (folder / "config.json").unlink()
    count = sum(parameter.numel() for parameter in model.parameters())
    for format in ("huggingface", "meta"):
        assert f"all                {count:,} parameters\n" in shown[format]
    assert "end of text        2\n" in shown["minimind"]
