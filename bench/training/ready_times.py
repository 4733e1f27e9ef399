"""When each gradient becomes ready: of a model that is not there, by its sizes, or as a run has recorded it.

In: a preset, or a `Timeline`. Out: a `Shape`, which is in the order in which gradients are registered, and from that
a `ReadyTimes`, in the order in which they become ready. Runs no model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.errors import BenchError
from bench.training.presets import Preset, gradients
from bench.training.records import Gradient, Shape, Timeline


@dataclass(frozen=True, slots=True)
class ReadyTimes:
    """Gradients in the order in which they become ready; the last one ends backward.

    ready_s: from the beginning of the step, or of backward. order: which number each has where it is registered.
    """

    nbytes: tuple[int, ...]
    ready_s: tuple[float, ...]
    order: tuple[int, ...]

    @classmethod
    def of(cls, nbytes: Sequence[int], ready_s: Sequence[float]) -> ReadyTimes:
        """From gradients in the order of registration; of two that are ready at once the later registered is first.

        Those of no bytes are left out: nothing is sent of them. Raises BenchError if none is left.
        """
        known = [i for i, size in enumerate(nbytes) if size > 0]
        if not known or not all(math.isfinite(ready_s[i]) for i in known):
            raise BenchError("a profile needs one gradient at least, and a time at which each of them is ready")
        order = sorted(known, key=lambda i: (ready_s[i], -i))
        return cls(tuple(nbytes[i] for i in order), tuple(ready_s[i] for i in order), tuple(order))

    @classmethod
    def of_shape(cls, shape: Shape) -> ReadyTimes:
        """The same of a shape; see `of`."""
        return cls.of([gradient.nbytes for gradient in shape.gradients], shape.ready_s)

    @property
    def total(self) -> int:
        return sum(self.nbytes)


def by_sizes(preset: Preset, backward_s: float, itemsize: int = 4) -> Shape:
    """Ready times in proportion to the flops of backward; gradients come in reverse order of registration.

    A weight that is multiplied with costs 4 flops a token and element in backward, for its own gradient and for that
    of its input. Norms and the embedding's look-up cost next to nothing, and the embedding comes last. Left out are
    the products of queries, keys and values, which have no weights: their share grows with the sequence.
    """
    sizes = gradients(preset, itemsize)
    work = np.array([gradient.elements if _multiplies(gradient) else 0 for gradient in sizes], dtype=float)
    done = np.cumsum(work[::-1])[::-1]
    return Shape(sizes, tuple(float(t) for t in backward_s * done / done[0]))


def _multiplies(gradient: Gradient) -> bool:
    owner = gradient.name.split(".")[-2]
    return not owner.startswith("norm") and owner != "embedding"


def recorded(timeline: Timeline) -> Shape:
    """As it was recorded: of each gradient the median over ranks, from the beginning of the step."""
    ready = [rank.ready_s for rank in timeline.ranks]
    if not ready or any(len(times) != len(timeline.gradients) for times in ready):
        raise BenchError(f"{timeline.scenario}: the step of {timeline.strategy} has no time for each gradient")
    return Shape(timeline.gradients, tuple(float(t) for t in np.median(ready, axis=0)))
