"""Read a list of gradient sizes, so that models that are no preset can be advised on.

In: a CSV file with the columns name and elements, in the order in which the model registers its parameters; and, if it
is known when each gradient is ready, ready_ms, since the beginning of backward. Out: a `Shape`. Raises ConfigError with
file and line.
"""

import csv
import math
from pathlib import Path

from bench.model.errors import ConfigError
from bench.training.ready_times import by_elements
from bench.training.records import Gradient, Shape

HEADER = "name,elements[,ready_ms]"


def read(path: Path, itemsize: int, backward_s: float | None) -> Shape:
    """The shape. backward_s: how long backward takes, needed if the file does not say when gradients are ready."""
    rows, timed = _rows(path)
    sizes = [_gradient(path, line, row, itemsize) for line, row in enumerate(rows, start=2)]
    if not timed:
        if backward_s is None:
            raise ConfigError(f"{path}: say how long backward takes, by --backward 60ms or by a column ready_ms")
        return by_elements(sizes, backward_s)
    if backward_s is not None:
        raise ConfigError(f"{path}: it says when gradients are ready (ready_ms), so leave out --backward")
    ready = [_number(path, line, "ready_ms", row["ready_ms"]) / 1e3 for line, row in enumerate(rows, start=2)]
    if max(ready) <= 0 or min(ready) < 0:
        raise ConfigError(f"{path}: ready_ms must not be negative, and the last gradient is ready after 0")
    return Shape(tuple(sizes), tuple(ready))


def _rows(path: Path) -> tuple[list[dict[str, str]], bool]:
    """The lines below the first one, and whether they say when gradients are ready."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            rows, columns = list(reader), reader.fieldnames or []
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{path}: {reason}") from None
    if not {"name", "elements"} <= set(columns):
        raise ConfigError(f"{path}: the first line must be {HEADER}; it is {','.join(columns) or 'empty'}")
    if not rows:
        raise ConfigError(f"{path}: no gradient is listed below the first line")
    return rows, "ready_ms" in columns


def _gradient(path: Path, line: int, row: dict[str, str], itemsize: int) -> Gradient:
    elements = _number(path, line, "elements", row["elements"])
    if elements < 1 or elements != int(elements):
        raise ConfigError(f"{path}:{line}: elements: {row['elements']} is no whole number of 1 at least")
    return Gradient(row["name"] or f"gradient {line - 1}", int(elements), int(elements) * itemsize)


def _number(path: Path, line: int, column: str, text: str | None) -> float:
    try:
        number = float(text or "")
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(f"{path}:{line}: {column}: {text or 'nothing'} is no number")
    return number
