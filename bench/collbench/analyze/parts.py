"""Define a package's part of the analysis of a run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from collbench.catalog.registry import PACKAGES
from collbench.model.conclusions import Summary
from collbench.model.notices import Notice
from collbench.model.records import Case, Run, Samples

if TYPE_CHECKING:  # only code that computes needs numpy
    from collbench.analyze.round_series import Series


P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class AnalysisPart:
    """A package's part of the analysis."""

    # The conclusions of the package, in a type of its own.
    analyze: Callable[[Run, Sequence[Summary]], object]
    # The samples of a run; for cases of the package, with only the timed blocks that count.
    counts: Callable[[Run, Sequence[Samples]], list[Samples]] = lambda run, samples: list(samples)
    # Exposed seconds of each round, and the A/A noise (difference of two copies of one case), for each of the package's
    # cases that communicates while it computes.
    exposed: Callable[[Run], Mapping[Case, tuple[Series, float]]] = lambda run: {}
    # Notices on a run, without its analysis.
    notices: Callable[[Run], list[Notice]] = lambda run: []
    # Settings that two comparable runs share.
    facts: Callable[[Run], dict[str, str]] = lambda run: {}


def once(conclude: Callable[Concatenate[Run, P], R]) -> Callable[Concatenate[Run, P], R]:
    """Return a function that draws a conclusion from a run only once, because several analyses of a report need it."""

    @functools.wraps(conclude)
    def concluded(run: Run, /, *arguments: P.args, **named: P.kwargs) -> R:
        asked = conclude, arguments, tuple(named.items())
        if asked not in run.concluded:
            run.concluded[asked] = conclude(run, *arguments, **named)
        result: R = run.concluded[asked]
        return result

    return concluded


def parts() -> dict[str, AnalysisPart]:
    """Return the part of each package that has one, by the package's name."""
    return {package.name: package.analysis.value for package in PACKAGES if package.analysis is not None}


@once
def samples_that_count(run: Run) -> list[Samples]:
    """Return the samples of a run; for cases of packages, only the timed blocks that count."""
    samples = run.samples
    for part in parts().values():
        samples = part.counts(run, samples)
    return samples


def exposed_of(run: Run) -> dict[Case, tuple[Series, float]]:
    """Return, for each case that communicates while it computes, exposed seconds per round, and its A/A noise."""
    return {case: exposed for part in parts().values() for case, exposed in part.exposed(run).items()}
