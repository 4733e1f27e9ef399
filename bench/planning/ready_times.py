"""Find when each gradient becomes ready: from a preset's sizes, from a recorded run, or from a file that lists it.

In: a preset and the time of its backward, a `Timeline`, or a CSV file of gradients. Out: a `Shape`, whose gradients are
in order of registration, and from it a `ReadyTimes`, in the order in which they become ready. Runs no model.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.catalog.presets import Preset, gradients
from bench.model.errors import BenchError, ConfigError
from bench.model.training import Gradient, Shape, Timeline

# First line of a file of gradients.
LIST_HEADER = "name,elements[,ready_ms]"


@dataclass(frozen=True, slots=True)
class ReadyTimes:
    """Gradients in the order in which they become ready; the last one ends backward.

    ready_s: since the beginning of backward. order: the registration number of each gradient.
    """

    nbytes: tuple[int, ...]
    ready_s: tuple[float, ...]
    order: tuple[int, ...]

    @classmethod
    def of(cls, nbytes: Sequence[int], ready_s: Sequence[float]) -> ReadyTimes:
        """From gradients in order of registration. Of two that are ready at once, the one registered later is first.

        Gradients of no bytes are left out, as they are not sent. Raises BenchError if none is left, or if a ready
        time is not finite.
        """
        known = [i for i, size in enumerate(nbytes) if size > 0]
        if not known or not all(math.isfinite(ready_s[i]) for i in known):
            raise BenchError("a profile needs one gradient at least, and a time at which each of them is ready")
        order = sorted(known, key=lambda i: (ready_s[i], -i))
        return cls(tuple(nbytes[i] for i in order), tuple(ready_s[i] for i in order), tuple(order))

    @classmethod
    def of_shape(cls, shape: Shape) -> ReadyTimes:
        """From the gradients of a shape; see `of`."""
        return cls.of([gradient.nbytes for gradient in shape.gradients], shape.ready_s)

    @property
    def total(self) -> int:
        return sum(self.nbytes)


def by_sizes(preset: Preset, backward_s: float, itemsize: int = 4) -> Shape:
    """Ready times in proportion to the flops of backward; gradients come in reverse order of registration.

    A weight matrix costs 4 flops per token and element in backward, half of them for its own gradient and half for
    that of its input. Norms and the embedding's look-up cost next to nothing, and the embedding comes last. The
    products of queries, keys and values, which have no weights, are left out: their share grows with the sequence. A
    tied weight is ready when both its uses are, with the embedding.
    """
    sizes = gradients(preset, itemsize)
    owners = [gradient.name.split(".")[-2] for gradient in sizes]
    multiplies = [not owner.startswith("norm") and owner != "embedding" for owner in owners]
    work = np.array([gradient.elements for gradient in sizes], dtype=float) * multiplies
    done = np.cumsum(work[::-1])[::-1] + (preset.vocabulary * preset.d_model if preset.tied else 0)
    return Shape(sizes, tuple(float(t) for t in backward_s * done / done[0]))


def by_elements(sizes: Sequence[Gradient], backward_s: float) -> Shape:
    """Ready times in proportion to the elements, in reverse order of registration: what is known of any other model."""
    done = np.cumsum(np.array([gradient.elements for gradient in sizes], dtype=float)[::-1])[::-1]
    return Shape(tuple(sizes), tuple(float(t) for t in backward_s * done / done[0]))


def recorded(timeline: Timeline) -> Shape:
    """The shape of a recorded step: each ready time is the median over ranks, since the beginning of backward."""
    ready = [np.array(rank.ready_s) - rank.forward_s for rank in timeline.ranks]
    if not ready or any(len(times) != len(timeline.gradients) for times in ready):
        raise BenchError("the recorded step has no time for each gradient")
    return Shape(timeline.gradients, tuple(max(0.0, float(time_s)) for time_s in np.median(ready, axis=0)))


def read_list(path: Path, itemsize: int, backward_s: float | None) -> Shape:
    """The shape of a model that is no preset, from a CSV file with the columns name and elements, and maybe ready_ms.

    Lines are in the order in which the model registers its parameters. ready_ms: since the beginning of backward.
    backward_s: how long backward takes, needed without that column. Raises ConfigError with file and line.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            rows, columns = list(reader), reader.fieldnames or []
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{path}: {reason}") from None
    if not {"name", "elements"} <= set(columns):
        raise ConfigError(f"{path}: the first line must be {LIST_HEADER}; it is {','.join(columns) or 'empty'}")
    if not rows:
        raise ConfigError(f"{path}: no gradient is listed below the first line")
    sizes = []
    for line, row in enumerate(rows, start=2):
        elements = _number(path, line, "elements", row["elements"])
        if elements < 1 or elements != int(elements):
            raise ConfigError(f"{path}:{line}: elements: {row['elements']} is no whole number of 1 at least")
        sizes.append(Gradient(row["name"] or f"gradient {line - 1}", int(elements), int(elements) * itemsize))
    if "ready_ms" not in columns:
        if backward_s is None:
            raise ConfigError(f"{path}: say how long backward takes, by --backward 60ms or by a column ready_ms")
        return by_elements(sizes, backward_s)
    if backward_s is not None:
        raise ConfigError(f"{path}: it says when gradients are ready (ready_ms), so leave out --backward")
    ready = [_number(path, line, "ready_ms", row["ready_ms"]) / 1e3 for line, row in enumerate(rows, start=2)]
    if max(ready) <= 0 or min(ready) < 0:
        raise ConfigError(f"{path}: ready_ms must not be negative, and the last gradient is ready after 0")
    return Shape(tuple(sizes), tuple(ready))


def _number(path: Path, line: int, column: str, text: str | None) -> float:
    try:
        number = float(text or "")
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(f"{path}:{line}: {column}: {text or 'nothing'} is no number")
    return number
