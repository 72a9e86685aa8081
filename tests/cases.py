"""Many cases in one test: `each` in place of pytest.mark.parametrize.

A case takes some microseconds and costs pytest some milliseconds. Instruction sets, dtypes and
oracles have tests of their own; lengths, shapes, offsets and strides are walked through in them.
"""

import functools
import inspect

import numpy as np

SEED = 20240601


def llama3_scaling(context):
    """Llama 3.1's scaling of RoPE for a model that was trained on so many positions."""
    options = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    return {"rope_type": "llama3", **options, "original_max_position_embeddings": context}


def each(names, values):
    """A decorator as pytest.mark.parametrize(names, values) is, whose cases are all one test.

    Every case runs and has an `rng` of its own, as if it were alone. A failure is the first case's,
    with a note that names all that fail.
    """
    names = names.split(", ") if isinstance(names, str) else list(names)
    values = [value if len(names) > 1 else (value,) for value in values]

    def decorate(test):
        signature = inspect.signature(test)

        @functools.wraps(test)
        def every_case(**fixtures):
            first, failed = None, []
            for value in values:
                case = dict(zip(names, value, strict=True))
                if "rng" in fixtures:
                    fixtures["rng"] = np.random.default_rng(SEED)
                try:
                    test(**fixtures, **case)
                except Exception as error:
                    first = first or error
                    failed.append(", ".join(f"{name}={shown(x)}" for name, x in case.items()))
            if first:
                first.add_note(f"{len(failed)} of {len(values)} cases fail: {'; '.join(failed)}")
                raise first

        kept = [p for name, p in signature.parameters.items() if name not in names]
        every_case.__signature__ = signature.replace(parameters=kept)
        return every_case

    return decorate


def shown(value):
    return getattr(value, "__name__", None) or repr(value)
