"""When each gradient becomes ready: of a model that is not there, by its shape, or as a run has recorded it.

In: a preset, or a `Timeline`. Out: a `planner.Profile`. Runs no model.
"""

import numpy as np

from bench.errors import BenchError
from bench.gradients.planner import Profile
from bench.gradients.presets import Preset, gradients
from bench.gradients.records import Gradient, Timeline


def shape_only(preset: Preset, backward_s: float, itemsize: int = 4) -> Profile:
    """Ready times in proportion to the flops of backward; gradients come in reverse order of registration.

    A weight that is multiplied with costs 4 flops a token and element in backward, for its own gradient and for that
    of its input. Norms and the embedding's look-up cost next to nothing, and the embedding comes last. Left out are
    the products of queries, keys and values, which have no weights: their share grows with the sequence.
    """
    sizes = gradients(preset, itemsize)
    work = np.array([gradient.elements if _multiplies(gradient) else 0 for gradient in sizes], dtype=float)
    done = np.cumsum(work[::-1])[::-1]
    return Profile.of([gradient.nbytes for gradient in sizes], [float(t) for t in backward_s * done / done[0]])


def _multiplies(gradient: Gradient) -> bool:
    owner = gradient.name.split(".")[-2]
    return not owner.startswith("norm") and owner != "embedding"


def from_timeline(timeline: Timeline) -> Profile:
    """As it was recorded: of each gradient the median over ranks, from the beginning of the step."""
    ready = [rank.ready_s for rank in timeline.ranks]
    if not ready or any(len(times) != len(timeline.gradients) for times in ready):
        raise BenchError(f"{timeline.scenario}: the step of {timeline.strategy} has no time for each gradient")
    return Profile.of(
        [gradient.nbytes for gradient in timeline.gradients], [float(t) for t in np.median(ready, axis=0)]
    )
