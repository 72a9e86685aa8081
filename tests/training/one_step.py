"""A process that trains: one_step.py (ours | eager) MODEL OPTIONS. It prints the most bytes that it
had more than after a tiny step, which loads everything, and than before any; ours also what later
steps ask for."""

import gc
import json
import sys
import tracemalloc
from pathlib import Path

import numpy as np

SIZES = {
    "vocab_size": 2048, "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 6,
    "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "tie_word_embeddings": True,
}  # fmt: skip


def memory(kind):
    """VmHWM, the most there has been, or VmRSS, what there is."""
    [line] = [one for one in Path("/proc/self/status").read_text().splitlines() if kind in one]
    return 1024 * int(line.split()[1])


def ours(folder):
    import simdformer as sf
    from simdformer.training import TrainableModel

    model = TrainableModel.from_pretrained(folder)
    optimizer = sf.optim.AdamW(model.parameters(), lr=1e-4)

    def step(ids, **options):
        loss, gradients = model.loss_and_gradients(ids, **options)
        sf.optim.clip_grad_norm_(gradients, 1.0)
        optimizer.step(gradients)
        return loss

    return step


def eager(folder):
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step(ids, precision="float32"):
        optimizer.zero_grad(set_to_none=True)
        rows = torch.as_tensor(ids)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
            loss = model(rows, labels=rows).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def main(kind, folder, **options):
    step = {"ours": ours, "eager": eager}[kind](folder)
    loaded = memory("VmRSS")
    ids = np.random.default_rng(0).integers(0, 2048, (8, 256))
    step(ids[:1, :8], **options)
    gc.collect()
    before = memory("VmRSS")
    for _ in range(2):
        step(ids, **options)
    found = {"most": memory("VmHWM") - before, "all": memory("VmHWM") - loaded}
    if kind == "ours":
        from simdformer import _core

        tracemalloc.start()
        step(ids, **options)
        made, rss = _core.result_memory()[2], memory("VmRSS")
        traced = tracemalloc.get_traced_memory()[0]
        for _ in range(3):
            step(ids, **options)
        found["pieces"] = _core.result_memory()[2] - made
        found["rss"] = memory("VmRSS") - rss
        found["traced"] = tracemalloc.get_traced_memory()[0] - traced
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], **json.loads(sys.argv[3]))
