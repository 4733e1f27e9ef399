"""What a package concludes from a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.catalog.registry import PACKAGES
from bench.model.conclusions import Summary
from bench.model.notices import Notice
from bench.model.records import Case, Run, Samples

if TYPE_CHECKING:  # numpy is only needed where values are
    from bench.analyze.round_series import Series


@dataclass(frozen=True)
class AnalysisPart:
    """A package's part of the analysis.

    analyze: what it concludes, in a type of its own. counts: its samples of a run with only the timed blocks that
    count; those of others as they are. exposed: of each case that communicates beside computing, the exposed seconds of
    each round, and by how much two copies of one case differ. notices: on a run. facts: settings of a run that two
    comparable runs share. is_control: whether a case only shows the noise of a run. own_cases: the cases of a run that
    the package shows alone, also if their operation is the core's; from what it concluded. untested: why its ranks are
    not tested for being late. whole: of a case, the one under which a skip stands for all of its kind.
    """

    analyze: Callable[[Run, Sequence[Summary]], object]
    counts: Callable[[Run, Sequence[Samples]], list[Samples]] = lambda run, samples: list(samples)
    exposed: Callable[[Run], Mapping[Case, tuple[Series, float]]] = lambda run: {}
    notices: Callable[[Run], list[Notice]] = lambda run: []
    facts: Callable[[Run], dict[str, str]] = lambda run: {}
    is_control: Callable[[Case], bool] = lambda case: False
    own_cases: Callable[[Run, object], set[Case]] = lambda run, concluded: set()
    untested: Callable[[Iterable[Case]], list[Notice]] = lambda cases: []
    whole: Callable[[Case], Case] = lambda case: case


def parts() -> dict[str, AnalysisPart]:
    """Name of a package → its part, for all that have one."""
    return {package.name: package.analysis.value for package in PACKAGES if package.analysis is not None}


def samples_that_count(run: Run) -> list[Samples]:
    """The samples of a run; of cases of packages, only the timed blocks that count."""
    samples = run.samples
    for part in parts().values():
        samples = part.counts(run, samples)
    return samples


def exposed_of(run: Run) -> dict[Case, tuple[Series, float]]:
    """Of each case that communicates beside computing: exposed seconds in each round, and the noise of its kind."""
    return {case: known for part in parts().values() for case, known in part.exposed(run).items()}
