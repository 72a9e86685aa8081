"""`simdformer train --lora` and `--stage dpo`: beside weights of few bits, killed and resumed,
merged, refused."""

import json
import signal

import numpy as np
import pytest

import simdformer as sf
from simdformer.models import ModelConfig
from simdformer.text import tokenizer as tokenizers
from simdformer.text.quantizing import quantize_checkpoint
from simdformer.training import TrainableModel
from simdformer.training.new_tokenizer import make_tokenizer
from test_train_command import finished, log_of, sent, start, the_error

pytest.importorskip("tokenizers")

SIZES = {
    "hidden_size": 256, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "head_dim": 32,
    "intermediate_size": 256, "vocab_size": 320, "max_seq_len": 64, "norm_eps": 1e-5,
    "rope_theta": 10000.0, "rope_layout": "half", "tie_embeddings": True,
}  # fmt: skip
NAMES = ["Tom", "Mia", "Ben", "Ann"]


def talk(name, answer):
    return [
        {"role": "user", "content": f"I am {name}. Who am I?"},
        {"role": "assistant", "content": answer},
    ]


def lines(objects):
    return "".join(json.dumps(one) + "\n" for one in objects)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A model with a tokenizer and a chat template, the same in few bits, and data."""
    directory = tmp_path_factory.mktemp("data")
    (directory / "tokenizer").mkdir()
    make_tokenizer(
        ["I am Tom. Who am I? You are Tom. Mia Ben Ann"] * 20, 300, directory / "tokenizer"
    )
    model = TrainableModel.from_config(ModelConfig(**SIZES))
    tokenizer = tokenizers.load(directory / "tokenizer" / "tokenizer.json")
    text = "<|im_start|>user\nI am {}. Who am I?<|im_end|>\n<|im_start|>assistant\nI see.<|im_end|>"
    ids = [tokenizer.encode(text.format(name), bos=False, special=True) for name in NAMES]
    optimizer = sf.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(40):  # it knows conversations, and always says the same
        optimizer.step(model.loss_and_gradients(ids)[1])
    model.save(directory / "model", tokenizer=directory / "tokenizer")
    quantize_checkpoint(directory / "model", directory / "q4_k.gguf", "q4_k_m")
    chats = [{"messages": talk(name, "You are Mia.")} for name in NAMES]
    (directory / "chat.jsonl").write_text(lines(chats))
    pairs = [
        {"chosen": talk(name, f"You are {name}."), "rejected": talk(name, "I do not know.")}
        for name in NAMES
    ]
    (directory / "pairs.jsonl").write_text(lines(pairs))
    said = [{"prompt": name, "chosen": " yes", "rejected": " no"} for name in NAMES]
    (directory / "texts.jsonl").write_text(lines(said))
    same = {"prompt": "Tom", "chosen": " yes", "rejected": " yes"}
    (directory / "same.jsonl").write_text(lines([same]))
    return directory


def arguments(files, out, *rest, data="chat.jsonl", model="q4_k.gguf"):
    return [
        "train", files / data, "--out", out, "--model", files / model, "--steps", 24,
        "--batch-tokens", 256, "--context", 64, "--lr", 5e-3, "--warmup", 2, "--every", 12, *rest,
    ]  # fmt: skip


@pytest.mark.slow
def test_adapters_of_a_gguf_file_learn_a_chat(command, files, tmp_path):
    status, _, said = command(*arguments(files, tmp_path, "--lora", 8, "--steps", 60))
    assert status == 0, said
    log = log_of(tmp_path)
    assert log[-1]["loss"] < 0.5 < 2 < log[0]["loss"]
    there = {path.name for path in tmp_path.iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors"} <= there
    assert not {"config.json", "model.safetensors"} & there
    model = sf.from_pretrained(files / "q4_k.gguf", adapter=tmp_path)
    assert isinstance(model.transformer.weights.layers[0].wo.matrix, sf.QuantizedWeight)
    asked = talk("Mia", "")[:1]
    assert model.chat(asked, max_new_tokens=12, temperature=0.0).strip() == "You are Mia."
    _, printed, _ = command(
        "run", files / "q4_k.gguf", "Tom", "--adapter", tmp_path, "--max-new-tokens", 3
    )
    assert printed.startswith("Tom")
    _, _, said = command("run", tmp_path, "Tom")
    assert "found an adapter alone, needs a model; give the model that it was made for" in said


@pytest.mark.slow
def test_killed_it_goes_on_with_the_same_bits(command, files, tmp_path):
    for name in ("whole", "killed"):
        given = arguments(files, tmp_path / name, "--lora", 4, "--save-minutes", 0)
        if name == "killed":
            checkpoint = tmp_path / name / "checkpoint-000003"
            finished(sent(start(given), signal.SIGKILL, checkpoint), -signal.SIGKILL)
            given.append("--resume")
        finished(start(given))
    whole, killed = (
        (tmp_path / name / "adapter_model.safetensors").read_bytes() for name in ("whole", "killed")
    )
    assert whole == killed
    _, _, said = command(*arguments(files, tmp_path / "whole", "--lora", 5, "--resume"))
    assert "--lora is 5, this run began with 4" in said


def test_the_whole_model_is_written_with_merge(command, files, tmp_path):
    given = arguments(files, tmp_path, "--lora", 8, "--targets", "wq,wv,down")
    status, _, said = command(*given)
    assert status == 0, said
    model = sf.from_pretrained(files / "q4_k.gguf", adapter=tmp_path)
    ids = np.arange(20) + 260
    want = model(ids)
    status, _, said = command(*given, "--resume", "--merge")  # the run has ended: only this is done
    assert status == 0, said
    merged = sf.from_pretrained(tmp_path)
    assert not (tmp_path / "adapter_config.json").exists()
    np.testing.assert_allclose(merged(ids), want, rtol=0, atol=5e-3 * np.abs(want).max())


@pytest.mark.sampled(4)
@pytest.mark.parametrize("data", ["pairs.jsonl", "texts.jsonl"])
@pytest.mark.parametrize("lora", [(), ("--lora", 4)])
def test_preferences_are_learned(command, files, tmp_path, data, lora):
    model = "model" if not lora else "q4_k.gguf"
    given = arguments(
        files, tmp_path, *lora, "--val", files / data, "--stage", "dpo", "--lr", 1e-3,
        data=data, model=model,
    )  # fmt: skip
    status, printed, said = command(*given)
    assert status == 0, said
    assert "pairs of a chosen and a rejected answer" in said
    log = log_of(tmp_path)
    assert log[0]["loss"] == pytest.approx(np.log(2), abs=1e-6)  # nothing is learnt yet
    assert log[0]["accuracy"] < 1
    assert log[-1]["accuracy"] == 1
    assert log[-1]["loss"] < 0.3
    assert log[-1]["val_loss"] < 0.3
    assert (tmp_path / "reference.npz").exists()
    assert "of pairs told apart" in printed


@pytest.mark.slow
def test_preferences_give_the_same_bits_killed_and_on_two_ranks(files, tmp_path):
    results = []
    for name in ("whole", "killed", "ranks"):
        out = tmp_path / name
        given = arguments(
            files, out, "--save-minutes", 0, "--lr", 1e-4, data="pairs.jsonl", model="model"
        )
        if name == "killed":
            checkpoint = out / "checkpoint-000003"
            finished(sent(start(given), signal.SIGKILL, checkpoint), -signal.SIGKILL)
            given.append("--resume")
        finished(start(given, ranks=2 if name == "ranks" else 1))
        results.append((out / "model.safetensors").read_bytes())
    assert results[0] == results[1] == results[2]


def test_the_loss_of_preferences_is_that_of_its_formula_in_pytorch(rng):
    torch = pytest.importorskip("torch")
    from simdformer.training.objectives import preference

    losses, reference = rng.random((6, 5)), rng.random(6) * 5
    loss, gradient = preference(losses, reference, beta=0.3, count=4)
    x = torch.tensor(losses, requires_grad=True)
    chosen, rejected = (torch.tensor(reference) - x.sum(1)).chunk(2)
    want = -torch.nn.functional.logsigmoid(0.3 * (chosen - rejected)).sum() / 4
    want.backward()
    assert loss == pytest.approx(want.item(), rel=1e-12)
    np.testing.assert_allclose(gradient, x.grad, rtol=1e-12)


@pytest.mark.parametrize(
    ("data", "given", "message"),
    [
        ("chat.jsonl", "--init model/config.json --lora 4", "--lora needs a model to stand beside"),
        ("chat.jsonl", "--model model --alpha 4", "--alpha is for adapters; give --lora RANK too"),
        ("chat.jsonl", "--model model --merge", "--merge is for adapters"),
        ("chat.jsonl", "--model model --lora 4 --targets wq,x", "targets has 'x', needs wq, wk"),
        ("chat.jsonl", "--model model --lora 0", "--lora: found '0', needs a whole number >= 1"),
        ("chat.jsonl", "--model model --stage dpo", "--stage is dpo, "),
        ("pairs.jsonl", "--model model --stage sft", "--stage is sft, "),
        ("pairs.jsonl", "--model model --context 4", "no pair of answers differs within"),
        ("same.jsonl", "--model model", "the chosen and the rejected answer are the same in every"),
    ],
)
def test_what_does_not_fit_is_one_sentence(
    command, files, tmp_path, monkeypatch, data, given, message
):
    monkeypatch.chdir(files)
    assert message in the_error(command, data, tmp_path / "run", given)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"chosen": "a", "rejected": "b"}, "line 1: found {'chosen': 'a', 'rejected': 'b'}"),
        ({"prompt": "x", "chosen": ["a"], "rejected": ["b"]}, 'needs {"prompt": "...", "chosen"'),
        ({"chosen": talk("Tom", "a"), "rejected": "b"}, 'needs {"prompt": "...", "chosen"'),
        (
            {"chosen": talk("Tom", "a"), "rejected": talk("Tom", "b")[:1]},
            "no turn of the assistant, needs {",
        ),
    ],
)
def test_pairs_that_are_none(command, files, tmp_path, line, message):
    file = tmp_path / "pairs.jsonl"
    file.write_text(lines([line]))
    status, _, said = command("train", file, "--out", tmp_path / "run", "--model", files / "model")
    assert status == 2
    assert message in said
