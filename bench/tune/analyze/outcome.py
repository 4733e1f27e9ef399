"""From the samples of a run of `tune`: what a stage leaves, and the outcome.

In: samples, and the library that measured them. Out: times, what is left of a race, a table, a `Tuned`.
"""

from collections.abc import Sequence

import numpy as np

from bench.analyze.sessions import launches_of
from bench.model.comparisons import SLOWER
from bench.model.records import Run, Samples
from bench.model.units import format_bytes
from bench.tune.analyze import choosing
from bench.tune.analyze.choosing import Names, Times
from bench.tune.catalog import FROM_FILE, FileRead, Library
from bench.tune.model import DEFAULT, Cell, CellResult, Pick, Picks, Tuned, cell_of

NOT_HONOURED = "not honoured: "


def times_of(samples: Sequence[Samples], library: Library) -> Times:
    """The logs of all that was measured."""
    times: Times = {}
    for entry in samples:
        if entry.failure is None and entry.timed is not None:
            logs = times.setdefault(cell_of(entry.case), {}).setdefault(library.choice_in(entry.case), {})
            logs[entry.launch] = float(np.log(np.mean(entry.timed.slowest_s)))
    return times


def _failed(samples: Sequence[Samples], library: Library) -> dict[tuple[Cell, Pick], tuple[int, str]]:
    """What failed: in which launch first, and why."""
    found: dict[tuple[Cell, Pick], tuple[int, str]] = {}
    for entry in samples:
        if entry.failure is not None and entry.failure.kind != "lost":
            key = cell_of(entry.case), library.choice_in(entry.case)
            found[key] = min(found.get(key, (entry.launch, "")), (entry.launch, entry.failure.text))
    return found


def left_after(samples: Sequence[Samples], library: Library, named: Names, rounds: int) -> dict[Cell, list[Pick]]:
    """The choices of each cell that are left after this many rounds of a race, without those that failed in them."""
    failed = {key for key, (launch, _) in _failed(samples, library).items() if launch <= rounds}
    sound = {cell: [choice for choice in choices if (cell, choice) not in failed] for cell, choices in named.items()}
    return choosing.raced(times_of(samples, library), sound, rounds)


def proven(
    samples: Sequence[Samples], library: Library, picks: Picks, launches: Sequence[int], min_change: float
) -> dict[Cell, Pick]:
    """The table: what these launches show to be faster. Everything else keeps the default, and so does what failed."""
    failed = _failed(samples, library)
    faster = choosing.proven(times_of(samples, library), picks, launches, min_change)
    return {cell: c if cell in faster and (cell, c) not in failed else DEFAULT for cell, c in picks.items()}


def tuned(
    samples: Sequence[Samples], library: Library, picks: Picks, table: Picks, proving: Sequence[int],
    checking: Sequence[int], min_change: float,
) -> Tuned:  # fmt: skip
    """The outcome of a race, its proof, and the last launches, which drop what they show to be slower."""
    times = times_of(samples, library)
    proof = choosing.judged(times, picks, proving, min_change)
    read = _as_measured(times, table, checking)
    again = choosing.judged(times, read, checking, min_change)
    final = {
        cell: DEFAULT if cell in again and again[cell][0].verdict == SLOWER else choice
        for cell, choice in table.items()
    }
    together, count = choosing.whole(times, {cell: read[cell] for cell in final if final[cell] != DEFAULT}, checking)
    places = choosing.crossovers(times, final)
    results = []
    for cell, tried in sorted(picks.items()):
        judgement, pairs = proof.get(cell, (None, 0))
        why = "nothing was faster in the race" if tried == DEFAULT else "no gain shown"
        if final[cell] != DEFAULT:
            why = "faster in fresh launches"
        elif table[cell] != DEFAULT:
            why = "faster in fresh launches, slower in those after them"
        results.append(CellResult(cell, final[cell], tried, why, judgement.ratio if judgement else None, pairs))
    rules = tuple(choosing.rules_of(final, places))
    return Tuned(tuple(results), rules, tuple(places), together, count, _launches(samples), wrong(samples, library))


def checked(
    samples: Sequence[Samples], library: Library, file: FileRead, table: Picks, launches: Sequence[int],
    min_change: float,
) -> Tuned:  # fmt: skip
    """What a rule file does that was there already."""
    times = times_of(samples, library)
    read = _as_measured(times, table, launches)
    proof = choosing.judged(times, read, launches, min_change, choosing.RACE_RATE)
    together, count = choosing.whole(times, read, launches)
    results = []
    for cell, choice in sorted(table.items()):
        judgement, pairs = proof.get(cell, (None, 0))
        why = judgement.verdict.lower() if judgement is not None else "no rule" if choice == DEFAULT else "not measured"
        results.append(CellResult(cell, choice, choice, why, judgement.ratio if judgement else None, pairs))
    notes = tuple(NOT_HONOURED + problem for problem in file.problems)
    return Tuned(
        tuple(results), file.rules, (), together, count, _launches(samples), wrong(samples, library), notes
    )  # fmt: skip


def _as_measured(times: Times, table: Picks, launches: Sequence[int]) -> dict[Cell, Pick]:
    """What the launches of a check measured in place of each rule: a side that reads the file, where there is one."""
    read = {cell for cell, logs in times.items() if set(launches) & logs.get(FROM_FILE, {}).keys()}
    return {cell: FROM_FILE if cell in read else pick for cell, pick in table.items() if pick != DEFAULT}


def _launches(samples: Sequence[Samples]) -> int:
    return len({(s.case.world_size, s.case.settings, s.launch) for s in samples})


def wrong(samples: Sequence[Samples], library: Library) -> tuple[str, ...]:
    """What failed, with the sizes of which it did."""
    sizes: dict[str, list[str]] = {}
    for (cell, choice), (_, text) in sorted(_failed(samples, library).items()):
        sizes.setdefault(f"{cell.op}, {cell.ranks} ranks, {choice}: {text}", []).append(format_bytes(cell.size))
    return tuple(f"{words} ({', '.join(of)})" for words, of in sizes.items())


def not_honoured(run: Run, library: Library) -> list[str]:
    """Cells in which the library says that it ran something else than it was told, where it says so (NCCL)."""
    chosen = (launch.get("chosen") or {} for launch in launches_of(run.environment))
    ran = {key: choice for choices in chosen for key, choice in choices.items()}
    found = []
    for case in run.plan.cases:
        asked, choice = library.choice_in(case), ran.get(case.key)
        if choice is not None and asked not in {DEFAULT, FROM_FILE}:
            words = choice["algorithm"].lower(), choice["protocol"].lower()
            if words != (asked.algorithm, asked.protocol):
                where = f"{case.op}, {case.world_size} ranks, {format_bytes(case.size_bytes)}"
                found.append(f"{NOT_HONOURED}{where}: told {asked}, {library.name} ran {' '.join(words)}")
    return found
