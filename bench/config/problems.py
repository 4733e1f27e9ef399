"""Hold a document against a model: every problem becomes one line with file, line, column, key, value and remedy.

In: a document, and a model of `fields.Strict`. Out: the validated model, or a ConfigError with all problems in the
order of the file. The words come from `fields`.
"""

from typing import Any, TypeVar

from pydantic import ValidationError

from bench.config.documents import Document
from bench.config.fields import MISSING, UNKNOWN, Strict
from bench.model.errors import ConfigError

# More lines than this are no help: the file is of another program.
MOST_LINES = 20
Model = TypeVar("Model", bound=Strict)


def validate(model: type[Model], document: Document, **defaults: Any) -> Model:
    """The model, or a ConfigError with a line for each problem. defaults: of keys that the document lacks."""
    try:
        return model.model_validate({**defaults, **document.values})
    except ValidationError as error:
        problems = error.errors(include_url=False)
    lines = []
    for problem in problems:
        path, kind = problem["loc"], problem["type"]
        place = document.place(path[:-1] if kind == MISSING else path, kind == UNKNOWN or path[-1:] == ("[key]",))
        keys = (*place.path, path[-1]) if kind == MISSING else place.path
        name = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).lstrip(".")
        lines.append((place.order, ": ".join(filter(None, (place.where, name, problem["msg"])))))
    ordered = list(dict.fromkeys(line for _, line in sorted(lines, key=lambda line: line[0])))
    # One line that says "1 more" would take as much room as the problem itself.
    if len(ordered) > MOST_LINES + 1:
        ordered[MOST_LINES:] = [f"{document.source}: and {len(ordered) - MOST_LINES} more problems"]
    raise ConfigError(*ordered)
