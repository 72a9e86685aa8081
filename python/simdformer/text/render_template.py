"""A program of its own: renders one chat template of a stranger, with hardly any rights.

stdin: JSON {path, template, variables (a list), seconds, memory, output}; stdout: JSON {texts}, one
for each of the variables, or {error} or {missing}. It runs as a process so that limits on time and
memory hold whatever the template does, and once the template runs it can open no file and no
socket. jinja2's sandbox is the first wall, this the second.
"""

import contextlib
import json
import resource
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any


def main() -> None:
    task = json.load(sys.stdin)
    sys.path[:] = task["path"]
    try:
        from jinja2 import TemplateError
    except ImportError as error:
        answer: dict[str, Any] = {"missing": str(error)}
    else:
        environment = make_environment()
        warm_up(environment)
        resource.setrlimit(resource.RLIMIT_AS, (task["memory"],) * 2)
        resource.setrlimit(resource.RLIMIT_CPU, (task["seconds"],) * 2)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
        try:
            template = environment.from_string(task["template"])
            every = (render(template, one, task["output"]) for one in task["variables"])
            answer = {"texts": list(every)}
        except TemplateError as error:
            line = getattr(error, "lineno", None)
            answer = {"error": f"{error}" + (f" (line {line})" if line else "")}
        except MemoryError:
            answer = {"error": "it takes too much memory"}
        except Exception as error:  # whatever its expressions do
            answer = {"error": f"{type(error).__name__}: {error}"}
    json.dump(answer, sys.stdout)


def warm_up(environment: Any) -> None:
    """Loads what is loaded on first use, while files may still be opened: the time zone, and what
    jinja2 needs to tell of an error."""
    from jinja2 import TemplateError

    with contextlib.suppress(TemplateError):
        environment.from_string("{{ raise_exception(strftime_now('%H')) }}").render()


def make_environment() -> Any:
    """An environment with what Hugging Face's templates expect to find."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """{% generation %} marks what the assistant said, for training; it is only text here."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> nodes.Node | list[nodes.Node]:
            next(parser.stream)
            body: list[nodes.Node] = parser.parse_statements(
                ("name:endgeneration",), drop_needle=True
            )
            return body

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def to_json(value: Any, indent: int | None = None, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent, **options)

    def strftime_now(format: str) -> str:
        return datetime.now().strftime(format)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = to_json
    functions: dict[str, Callable[..., Any]] = {
        "raise_exception": raise_exception,
        "strftime_now": strftime_now,
    }
    environment.globals.update(functions)
    return environment


def render(template: Any, variables: dict[str, Any], longest: int) -> str:
    pieces, length = [], 0
    for piece in template.generate(**variables):
        length += len(piece)
        if length > longest:
            raise ValueError(f"its text is longer than {longest} characters")
        pieces.append(piece)
    return "".join(pieces)


if __name__ == "__main__":
    main()
