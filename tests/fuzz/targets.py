"""What is fuzzed: everything that reads bytes or text of strangers, one target a format.

A target writes its input into a file, lets the reader have it, and uses what comes out. Good is a
result that fits together, or a CheckpointError in one line that names the file. Whatever else
happens is a finding.
"""

import functools
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import mutation
import seeds
import simdformer as sf
from checkpoints import tiny_config
from simdformer.checkpoints import CheckpointError, read_checkpoint
from simdformer.checkpoints.peft import read_adapters
from simdformer.checkpoints.safetensors_file import INDEX, read_directory
from simdformer.checkpoints.safetensors_file import read_tensors as read_safetensors
from simdformer.checkpoints.torch_file import read_tensors as read_pth
from simdformer.models import Transformer
from simdformer.training.checkpoint import read_checkpoint as read_saved_run
from simdformer.training.sources import read_source, stage_of

TEXTS = ("a", "hi, I  am\n\t1234 ½ é€ \U0001f600 <s></s><|eot_id|>", " " * 40 + "ab" * 40, "")


@dataclass
class Target:
    """A format. `read` takes the path of a file called `file` (of the folder, where that ends in
    "/"), and uses what comes out.

    `inputs()` are some that are right, `wrapped` makes a file of one, `files()` are what else lies
    in the folder. `whole`: no beginning of an input is an input. `folder_too`: the folder may be
    given as well as the file. `optional`: the others are read without it.
    """

    file: str
    read: Callable
    inputs: Callable
    mutate: Callable = mutation.mutate_bytes
    files: Callable = dict
    wrapped: Callable = bytes
    whole: bool = True
    folder_too: bool = False
    optional: bool = False
    refusal: type = CheckpointError

    def __post_init__(self):
        self.inputs, self.folder = functools.cache(self.inputs), None

    def paths(self, folder):
        """What may be given to the reader, the file first."""
        of_folder, file = self.file.endswith("/"), folder / self.file.strip("/")
        return [folder] if of_folder else [file, folder] if self.folder_too else [file]

    def made(self, folder, data):
        """Puts the files into a folder, and gives them, that of the data first."""
        file = folder / self.file.strip("/")
        contents = {file: self.wrapped(data)}
        contents |= {folder / name: content for name, content in self.files().items()}
        for path, content in contents.items():
            path.write_bytes(content)
        return [*contents]

    def __call__(self, data):
        """Runs one input, and says whether it was read; an exception is a finding."""
        if self.folder is None:
            self.folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
        self.made(self.folder, data)
        try:
            self.read(self.paths(self.folder)[0])
        except self.refusal as error:
            check_message(str(error), self.folder)
            return False
        return True

    def close(self):
        if self.folder is not None:
            shutil.rmtree(self.folder)
            self.folder = None


def check_message(message, folder):
    """It is one line for people, and names a file in the folder."""
    assert message.startswith(str(folder)), f"names no file: {message}"
    assert "\n" not in message, f"no message for people: {message[:2000]}"
    assert len(message) < 1500, f"no message for people: {message[:2000]}"


# ---- use of what was read ------------------------------------------------------------------------


def tensors_of(read, most=lambda size: size):
    """Every element lies in the file, and not each of them a thousand times: they take `most` bytes
    of a file of `size`."""

    def use(path):
        tensors = read(path)
        size = path.stat().st_size
        assert sum(tensor.nbytes for tensor in tensors.values()) <= most(size)
        for tensor in tensors.values():
            array = np.asarray(tensor)
            assert (array.shape, array.dtype) == (tensor.shape, tensor.dtype)
            array.copy()

    return use


def use_checkpoint(path, **options):
    checkpoint = read_checkpoint(path, **options)
    config = checkpoint.config
    model = Transformer(config, checkpoint.weights)
    logits = model([0, config.vocab_size - 1][: config.max_seq_len])
    assert logits.shape[-1] == config.vocab_size
    assert logits.dtype == np.float32


def use_tokenizer(path, exact=False):
    """`exact`: every text comes back."""
    tokenizer = sf.tokenizer.load(path)
    for text in TEXTS:
        for special in (False, True):
            ids = tokenizer.encode(text, special=special)
            assert all(0 <= id < tokenizer.vocab_size for id in ids)
            stream = tokenizer.stream()
            pieces = [stream.put(id) for id in ids]
            decoded = tokenizer.decode(ids, skip_special=True)
            assert "".join([*pieces, stream.flush()]) == decoded
            assert decoded == text or special or not exact
    some = [*range(min(300, tokenizer.vocab_size)), tokenizer.vocab_size - 1, 2**40]
    assert isinstance(tokenizer.decode([id for id in some if id >= 0]), str)
    assert all(0 <= id < tokenizer.vocab_size for id in tokenizer.eos_ids)
    assert tokenizer.bos_id is None or 0 <= tokenizer.bos_id < tokenizer.vocab_size


def use_exact_tokenizer(path):
    use_tokenizer(path, exact=True)


def use_gguf(path):
    use_checkpoint(path)
    use_tokenizer(path)


def use_adapters(folder):
    config = tiny_config(**seeds.SMALL)
    model = Transformer(config, seeds.small_weights(config))
    assert np.isfinite(model.with_adapters(read_adapters(folder, config))([0, 1])).any()


def use_saved_run(folder):
    saved = read_saved_run(folder)
    assert (saved.step, saved.state) == (3, {"norms": [0.5]})
    assert saved.arrays["weights"]["embed"].tolist() == [0, 1, 2]


def use_source(path):
    source = read_source(path)
    assert len(source.documents) == len(source.lines) > 0
    stage_of([source])


# ---- the table -----------------------------------------------------------------------------------


def pickled():
    return seeds.pickle_bytes(seeds.few_tensors())


def with_adapters_behind(header):
    tensors = b"".join(tensor.tobytes() for tensor in seeds.adapter_tensors().values())
    return seeds.with_length(header) + tensors


def fuzz_json(file, read, inputs, files=dict, **options):
    return Target(file, read, inputs, mutation.mutate_json, files, **options)


SAFETENSORS = tensors_of(read_safetensors)
PTH = tensors_of(read_pth, lambda size: 4 * size)
OF_RUNS = {"whole": False, "refusal": ValueError}
TARGETS = {
    "safetensors": Target(
        "x.safetensors", SAFETENSORS, lambda: [seeds.safetensors_bytes(seeds.few_tensors())]
    ),
    "safetensors-header": fuzz_json(
        "x.safetensors",
        tensors_of(read_safetensors, lambda size: 36),
        lambda: [seeds.header_of(seeds.few_tensors())],
        wrapped=lambda header: seeds.with_length(header) + bytes(36),
    ),
    "safetensors-index": fuzz_json(
        f"{INDEX}/",
        tensors_of(read_directory, lambda size: 36),
        lambda: seeds.dumped(seeds.INDEX),
        seeds.indexed_files,
        optional=True,
    ),
    "pth": Target("x.pth", PTH, lambda: [seeds.pth_bytes(pickled(), seeds.few_tensors())]),
    "pth-pickle": Target(
        "x.pth",
        PTH,
        lambda: [pickled()],
        mutation.mutate_pickle,
        wrapped=lambda data: seeds.pth_bytes(data, seeds.few_tensors()),
    ),
    "llama2c": Target("model.bin", use_checkpoint, seeds.llama2c_seeds, folder_too=True),
    "gguf": Target("model.gguf", use_gguf, seeds.gguf_seeds, folder_too=True),
    "gguf-tokenizer": Target(
        "tokenizer.gguf",
        use_tokenizer,
        seeds.gguf_tokenizer_seeds,
        whole=False,
        folder_too=True,
    ),
    "config": fuzz_json("config.json/", use_checkpoint, seeds.configs, seeds.huggingface_files),
    "minimind": fuzz_json("config.json/", use_checkpoint, seeds.configs, seeds.minimind_files),
    "params": fuzz_json("params.json/", use_checkpoint, seeds.params, seeds.meta_files),
    "adapter": fuzz_json(
        "adapter_model.safetensors/",
        use_adapters,
        lambda: [seeds.header_of(seeds.adapter_tensors())],
        lambda: {"adapter_config.json": seeds.dumped(seeds.ADAPTER)[0]},
        wrapped=with_adapters_behind,
    ),
    "adapter-config": fuzz_json(
        "adapter_config.json/",
        use_adapters,
        lambda: seeds.dumped(seeds.ADAPTER),
        lambda: {"adapter_model.safetensors": seeds.safetensors_bytes(seeds.adapter_tensors())},
    ),
    "tokenizer": fuzz_json("tokenizer.json", use_tokenizer, seeds.tokenizer_jsons, folder_too=True),
    "tokenizer-config": fuzz_json(
        "tokenizer_config.json/",
        use_tokenizer,
        lambda: seeds.dumped(seeds.TOKENIZER_CONFIG),
        lambda: {"tokenizer.json": seeds.tokenizer_jsons()[0]},
        optional=True,
    ),
    "vocab": fuzz_json(
        "vocab.json",
        use_tokenizer,
        lambda: seeds.dumped(seeds.byte_level()),
        seeds.vocab_files,
        folder_too=True,
    ),
    "merges": Target(
        "merges.txt/", use_tokenizer, lambda: [seeds.MERGES], files=seeds.merges_files, whole=False
    ),
    "tiktoken": Target(
        "tokenizer.model", use_exact_tokenizer, seeds.tiktoken_seed, whole=False, folder_too=True
    ),
    "sentencepiece": Target(
        "tokenizer.model",
        use_tokenizer,
        seeds.sentencepiece_seed,
        mutation.mutate_protobuf,
        whole=False,
        folder_too=True,
    ),
    "llama2c-tokenizer": Target(
        "tok300.bin",
        use_exact_tokenizer,
        seeds.llama2c_tokenizer_seed,
        whole=False,
        folder_too=True,
    ),
    "run-state": fuzz_json(
        "state.json/",
        use_saved_run,
        lambda: [seeds.saved_run()["state.json"]],
        lambda: {"arrays.npz": seeds.saved_run()["arrays.npz"]},
        refusal=ValueError,
    ),
    "run-arrays": Target(
        "arrays.npz/",
        use_saved_run,
        lambda: [seeds.saved_run()["arrays.npz"]],
        files=lambda: {"state.json": seeds.saved_run()["state.json"]},
        refusal=ValueError,
    ),
    "json-lines": Target(
        "data.jsonl", use_source, seeds.json_lines, mutation.mutate_lines, **OF_RUNS
    ),
    "text": Target("data.txt", use_source, lambda: ["One.\n\nZwölf.".encode()], **OF_RUNS),
    "ids": Target("data.bin", use_source, lambda: [bytes(range(32))], **OF_RUNS),
}
