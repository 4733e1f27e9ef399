"""When each gradient becomes ready: estimated from a preset's sizes, or as a run has recorded it.

In: a preset and the time of its backward, or a `Timeline`. Out: a `Shape`, whose gradients are in order of
registration, and from it a `ReadyTimes`, in the order in which they become ready. Runs no model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.model.errors import BenchError
from bench.training.presets import Preset, gradients
from bench.training.records import Gradient, Shape, Timeline


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
    def of_shape(cls, shape: Shape, forward_s: float = 0.0) -> ReadyTimes:
        """From the gradients of a shape whose backward begins after forward_s; see `of`."""
        ready_s = [max(0.0, ready - forward_s) for ready in shape.ready_s]
        return cls.of([gradient.nbytes for gradient in shape.gradients], ready_s)

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
    work = np.array([gradient.elements if _multiplies(gradient) else 0 for gradient in sizes], dtype=float)
    done = np.cumsum(work[::-1])[::-1] + (preset.vocabulary * preset.d_model if preset.tied else 0)
    return Shape(sizes, tuple(float(t) for t in backward_s * done / done[0]))


def by_elements(sizes: Sequence[Gradient], backward_s: float) -> Shape:
    """Ready times in proportion to the elements, in reverse order of registration: what is known of any other model."""
    done = np.cumsum(np.array([gradient.elements for gradient in sizes], dtype=float)[::-1])[::-1]
    return Shape(tuple(sizes), tuple(float(t) for t in backward_s * done / done[0]))


def _multiplies(gradient: Gradient) -> bool:
    owner = gradient.name.split(".")[-2]
    return not owner.startswith("norm") and owner != "embedding"


def recorded(timeline: Timeline) -> Shape:
    """The shape of a recorded step: each ready time is the median over ranks, since the beginning of the step."""
    ready = [rank.ready_s for rank in timeline.ranks]
    if not ready or any(len(times) != len(timeline.gradients) for times in ready):
        raise BenchError(f"{timeline.scenario}: the step of {timeline.strategy} has no time for each gradient")
    return Shape(timeline.gradients, tuple(float(t) for t in np.median(ready, axis=0)))
