"""What is fuzzed: everything that reads bytes or text of strangers, one target a format.

A target writes its input into a file, lets the reader have it, and uses what comes out. Good is a
result that fits together, or a CheckpointError in one line that names the file. Whatever else
happens is a finding.
"""

import functools
import shutil
import tempfile
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

TEXTS = ("a", "hi, I  am\n\t1234 ½ é€ \U0001f600 <s></s><|eot_id|>", " " * 40 + "ab" * 40, "")
TARGETS = {}


class Target:
    """`run(folder, data)` is what is tested, `inputs()` are some that are right; `files()` are what
    else lies in the folder. `whole`: no beginning of an input is an input."""

    def __init__(self, name, run, inputs, mutate, files, whole):
        self.name, self.run, self.mutate, self.whole = name, run, mutate, whole
        self.inputs = functools.cache(inputs)
        self.files = files
        self.folder = None

    def __call__(self, data):
        """Runs one input, and says whether it was read; an exception is a finding."""
        if self.folder is None:
            self.folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
            for name, content in self.files().items():
                (self.folder / name).write_bytes(content)
        try:
            self.run(self.folder, data)
        except CheckpointError as error:
            message = str(error)
            if not message.startswith(str(self.folder)):
                raise AssertionError(f"names no file: {message}") from error
            if "\n" in message or len(message) > 1500:
                raise AssertionError(f"no message for people: {message[:2000]}") from error
            return False
        return True

    def close(self):
        if self.folder is not None:
            shutil.rmtree(self.folder)
            self.folder = None


def target(name, inputs, mutate=mutation.mutate_bytes, files=dict, whole=True):
    def register(run):
        TARGETS[name] = Target(name, run, inputs, mutate, files, whole)
        return run

    return register


# ---- use of what was read ------------------------------------------------------------------------


def use_tensors(tensors, limit):
    """Every element lies in the file, and not each of them a thousand times."""
    assert sum(tensor.nbytes for tensor in tensors.values()) <= limit
    for tensor in tensors.values():
        array = np.asarray(tensor)
        assert (array.shape, array.dtype) == (tensor.shape, tensor.dtype)
        array.copy()


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


def written(folder, name, data):
    (folder / name).write_bytes(data)
    return folder / name


# ---- checkpoints ---------------------------------------------------------------------------------


@target("safetensors", lambda: [seeds.safetensors_bytes(seeds.few_tensors())])
def _(folder, data):
    use_tensors(read_safetensors(written(folder, "x.safetensors", data)), len(data))


@target("safetensors-header", lambda: [seeds.header_of(seeds.few_tensors())], mutation.mutate_json)
def _(folder, data):
    whole = seeds.with_length(data) + bytes(36)
    use_tensors(read_safetensors(written(folder, "x.safetensors", whole)), 36)


@target(
    "safetensors-index",
    lambda: seeds.dumped(seeds.INDEX),
    mutation.mutate_json,
    seeds.indexed_files,
)
def _(folder, data):
    written(folder, INDEX, data)
    use_tensors(read_directory(folder), 36)


@target("pth", lambda: [seeds.pth_bytes(pickled(), seeds.few_tensors())])
def _(folder, data):
    use_tensors(read_pth(written(folder, "x.pth", data)), 4 * len(data))


def pickled():
    return seeds.pickle_bytes(seeds.few_tensors())


@target("pth-pickle", lambda: [pickled()], mutation.mutate_pickle)
def _(folder, data):
    whole = seeds.pth_bytes(data, seeds.few_tensors())
    use_tensors(read_pth(written(folder, "x.pth", whole)), 4 * len(whole))


@target("llama2c", seeds.llama2c_seeds)
def _(folder, data):
    use_checkpoint(written(folder, "model.bin", data))


@target("gguf", seeds.gguf_seeds)
def _(folder, data):
    file = written(folder, "model.gguf", data)
    use_checkpoint(file)
    use_tokenizer(file)


@target("gguf-tokenizer", seeds.gguf_tokenizer_seeds, whole=False)
def _(folder, data):
    use_tokenizer(written(folder, "tokenizer.gguf", data))


@target("config", seeds.configs, mutation.mutate_json, seeds.huggingface_files)
def _(folder, data):
    written(folder, "config.json", data)
    use_checkpoint(folder)


@target("params", seeds.params, mutation.mutate_json, seeds.meta_files)
def _(folder, data):
    written(folder, "params.json", data)
    use_checkpoint(folder)


def use_adapters(folder):
    config = tiny_config(**seeds.SMALL)
    model = Transformer(config, seeds.small_weights(config))
    assert np.isfinite(model.with_adapters(read_adapters(folder, config))([0, 1])).any()


@target(
    "adapter",
    lambda: [seeds.header_of(seeds.adapter_tensors())],
    mutation.mutate_json,
    lambda: {"adapter_config.json": seeds.dumped(seeds.ADAPTER)[0]},
)
def _(folder, data):
    tensors = b"".join(tensor.tobytes() for tensor in seeds.adapter_tensors().values())
    written(folder, "adapter_model.safetensors", seeds.with_length(data) + tensors)
    use_adapters(folder)


@target(
    "adapter-config",
    lambda: seeds.dumped(seeds.ADAPTER),
    mutation.mutate_json,
    lambda: {"adapter_model.safetensors": seeds.safetensors_bytes(seeds.adapter_tensors())},
)
def _(folder, data):
    written(folder, "adapter_config.json", data)
    use_adapters(folder)


# ---- tokenizers ----------------------------------------------------------------------------------


@target("tokenizer", seeds.tokenizer_jsons, mutation.mutate_json)
def _(folder, data):
    use_tokenizer(written(folder, "tokenizer.json", data))


@target(
    "tokenizer-config",
    lambda: seeds.dumped(seeds.TOKENIZER_CONFIG),
    mutation.mutate_json,
    lambda: {"tokenizer.json": seeds.tokenizer_jsons()[0]},
)
def _(folder, data):
    written(folder, "tokenizer_config.json", data)
    use_tokenizer(folder / "tokenizer.json")


@target("vocab", lambda: seeds.dumped(seeds.byte_level()), mutation.mutate_json, seeds.vocab_files)
def _(folder, data):
    use_tokenizer(written(folder, "vocab.json", data))


@target("merges", lambda: [seeds.MERGES], files=seeds.merges_files, whole=False)
def _(folder, data):
    use_tokenizer(written(folder, "merges.txt", data).parent)


@target("tiktoken", seeds.tiktoken_seed, whole=False)
def _(folder, data):
    use_tokenizer(written(folder, "tokenizer.model", data), exact=True)


@target("sentencepiece", seeds.sentencepiece_seed, mutation.mutate_protobuf, whole=False)
def _(folder, data):
    use_tokenizer(written(folder, "tokenizer.model", data))


@target("llama2c-tokenizer", seeds.llama2c_tokenizer_seed, whole=False)
def _(folder, data):
    use_tokenizer(written(folder, "tokenizer.bin", data), exact=True)
