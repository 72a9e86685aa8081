"""Fuzzes one target after the other: python tests/fuzz/run.py [TARGET ...] [--seconds 600]

Coverage-guided by atheris where that is installed (`--engine atheris`), else blindly
(`--engine plain`); both change the same seeds by the same mutations, and a seed number gives the
same run again. An input that does harm is written to a file; `--input FILE` runs it alone.
"""

import argparse
import importlib.util
import random
import resource
import subprocess
import sys
import tempfile
import time
import traceback
import types
from pathlib import Path

MEMORY = 8 << 30  # bytes of address space; the inputs have kilobytes
HANG = 60  # seconds for one input

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="none: all of them")
    parser.add_argument("--runs", type=int, default=0, help="inputs of each target (0: no limit)")
    parser.add_argument("--seconds", type=int, default=0, help="time for each target (0: no limit)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", choices=["atheris", "plain"], default=best_engine())
    parser.add_argument("--input", type=Path, help="runs this file, nothing else")
    parser.add_argument(
        "--findings", type=Path, default=Path("."), help="folder for what does harm"
    )
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        run_one(options)
        return 0
    if options.runs == options.seconds == 0 and options.input is None:
        parser.error("give --runs, --seconds or --input")
    names = options.targets or target_names()
    return max(in_a_process(name, sys.argv[1:], options.targets) for name in names)


def best_engine():
    return "atheris" if importlib.util.find_spec("atheris") else "plain"


def target_names():
    from targets import TARGETS

    return list(TARGETS)


def in_a_process(name, arguments, targets):
    """The library may be killed by what it reads: each target runs in a process of its own."""
    others = [argument for argument in arguments if argument not in targets]
    started = time.perf_counter()
    ended = subprocess.run(
        [sys.executable, __file__, "--child", name, *others],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    lines = [line for line in ended.stdout.splitlines() if "INFO: Instrumenting" not in line]
    seconds = time.perf_counter() - started
    print(f"{name}: {'good' if ended.returncode == 0 else 'BAD'} after {seconds:.0f} s", flush=True)
    print("\n".join(lines[-60:] if ended.returncode else lines[-2:]), flush=True)
    return int(ended.returncode != 0)


def run_one(options):
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    from targets import TARGETS

    target = TARGETS[options.targets[0]]
    try:
        if options.input is not None:
            target(options.input.read_bytes())
        elif options.engine == "atheris":
            with_atheris(target, options)
        else:
            plainly(target, options)
    finally:
        target.close()


def with_atheris(target, options):
    """Inputs that reach new code are kept and changed further."""
    import atheris

    for function in our_functions():
        atheris.instrument_func(function)
    corpus = Path(tempfile.mkdtemp(prefix="corpus-"))
    longest = 0
    for number, seed in enumerate(target.inputs()):
        (corpus / str(number)).write_bytes(seed)
        longest = max(longest, len(seed))

    def mutated(data, most, seed):
        return target.mutate(data, random.Random(seed))[:most]

    arguments = [options.targets[0], f"-runs={options.runs or -1}", f"-seed={options.seed}"]
    arguments += [f"-max_total_time={options.seconds}", f"-timeout={HANG}", "-rss_limit_mb=0"]
    arguments += [f"-max_len={2 * longest + 4096}", "-print_final_stats=0"]
    arguments += [f"-artifact_prefix={options.findings}/{options.targets[0]}-", str(corpus)]
    atheris.Setup(arguments, lambda data: target(data), custom_mutator=mutated)
    atheris.Fuzz()


def our_functions():
    """All functions and methods of the readers. (The hook that would find them while they are
    imported sees nothing of an editable install.)"""
    rooms = tuple(f"simdformer.{room}" for room in ("checkpoints", "models", "text", "training"))
    for name, module in list(sys.modules.items()):
        if not name.startswith(rooms):
            continue
        own = [value for value in vars(module).values() if getattr(value, "__module__", "") == name]
        for value in own:
            inside = vars(value).values() if isinstance(value, type) else [value]
            for function in inside:
                function = getattr(function, "__func__", function)  # of a classmethod
                if isinstance(function, types.FunctionType):
                    yield function


def plainly(target, options):
    """Seeds, changed once or several times."""
    chance = random.Random(options.seed)
    seeds = target.inputs()
    end = time.monotonic() + (options.seconds or 10**9)
    count = 0
    while (not options.runs or count < options.runs) and time.monotonic() < end:
        data = chance.choice(seeds)
        for _ in range(chance.choice((0, 1, 1, 2, 3, 6)) if count >= len(seeds) else 0):
            data = target.mutate(data, chance)
        count += 1
        try:
            target(data)
        except BaseException:
            file = options.findings / f"{options.targets[0]}-{options.seed}-{count}"
            file.write_bytes(data)
            traceback.print_exc()
            print(f"input {count} does harm: {file}")
            raise SystemExit(1) from None
    print(f"{count} inputs")


if __name__ == "__main__":
    sys.exit(main())
