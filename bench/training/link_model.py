"""How long an all-reduce takes on a link: as a user states it, or as a run has measured it.

In: text such as "2ms+1GB/s", or summaries of a run of collectives. Out: a `LinkModel` link. Measures nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from bench.backends import BACKENDS
from bench.conclusions import Summary
from bench.errors import ConfigError
from bench.records import Case, case_order
from bench.training.all_reduce_cost import AllReduceCost
from bench.units import format_bytes, format_rate, format_seconds, parse_link


@dataclass(frozen=True, slots=True)
class LinkModel:
    """A link. words: what it is. cpu: whether communicating costs CPU time there; None where nobody said.

    largest: bytes beyond which the curve is drawn on, not measured; None where it is a formula. ranks: of gloo on this
    kind of host, which can be measured again; None where it is another link.
    """

    cost: AllReduceCost
    words: str
    cpu: bool | None = None
    largest: int | None = None
    notes: tuple[str, ...] = ()
    ranks: int | None = None


def stated(text: str) -> LinkModel:
    """From a latency and a rate. Raises ConfigError."""
    try:
        latency_s, bytes_per_s = parse_link(text)
    except ValueError as error:
        raise ConfigError(f"--link {text}: {error}") from None
    words = f"a link of {format_seconds(latency_s)} and {format_rate(bytes_per_s)} GB/s"
    return LinkModel(AllReduceCost.of_link(latency_s, bytes_per_s), words)


def measured(
    summaries: Iterable[Summary], run: str, dtype: str, backend: str | None = None, world_size: int | None = None
) -> LinkModel:
    """From a run's all-reduces over sizes. Raises ConfigError where it has none, or several to choose from.

    Of variants the one with fewest peculiarities is taken; in place, as DistributedDataParallel reduces, if there is
    a choice. Without a series in this dtype another one is taken, as an all-reduce's time is mostly that of its bytes.
    """
    every = [s for s in summaries if s.case.op == "all_reduce" and s.time_s is not None and s.case.groups == "world"]
    if not every:
        raise ConfigError(f"{run}: no all_reduce was measured, so that it says nothing of the link")
    asked = [s for s in every if backend in (None, s.case.backend) and world_size in (None, s.case.world_size)]
    if not asked:
        raise ConfigError(f"{run}: no such all_reduce was measured; there are {_choices(every)}")
    if len({(s.case.backend, s.case.world_size) for s in asked}) > 1:
        raise ConfigError(f"{run}: choose with --backend and --world-size; there are {_choices(asked)}")
    series = _series([s for s in asked if s.case.dtype == dtype] or asked)
    if len(series) < 2:
        raise ConfigError(f"{run}: all_reduce was measured at one size only; a curve needs two")
    case = series[0].case
    notes = [] if case.dtype == dtype else [f"The link was measured with {case.dtype}, not with {dtype}."]
    if case.extras:
        notes.append(f"The link was measured with {', '.join(case.extras)}.")
    times = [s.time_s.value for s in series if s.time_s is not None]
    sizes = [s.case.size_bytes for s in series]
    ranks = case.world_size if case.backend == "gloo" else None
    words = (
        f"{run}: {case.backend}, {case.world_size} ranks, {len(sizes)} sizes "
        f"from {format_bytes(sizes[0])} to {format_bytes(sizes[-1])}"
    )
    return LinkModel(
        AllReduceCost.through(sizes, times), words, costs_cpu(case.backend), sizes[-1], tuple(notes), ranks
    )


def costs_cpu(backend: str) -> bool | None:
    """Whether communicating takes CPU time from computing; None where that is not known."""
    known = BACKENDS.get(backend)
    return known.device == "cpu" if known else None


def _series(found: Sequence[Summary]) -> list[Summary]:
    """The most usual series of sizes, smallest first."""

    def usual(case: Case) -> tuple[object, ...]:
        return (len(case.extras), case.placement == "out", case_order(case))

    chosen = min({replace(s.case, size_bytes=0) for s in found}, key=usual)
    return sorted(
        (s for s in found if replace(s.case, size_bytes=0) == chosen), key=lambda summary: summary.case.size_bytes
    )


def _choices(found: Sequence[Summary]) -> str:
    pairs = sorted({(s.case.backend, s.case.world_size) for s in found})
    return "; ".join(f"--backend {backend} --world-size {ranks}" for backend, ranks in pairs)
