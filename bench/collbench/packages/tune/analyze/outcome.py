"""Compute the choices that a stage leaves, and the outcome, from the samples of a run of `tune`.

In: samples, and the library that was measured. Out: times, choices left in a race, a table, a `Tuned`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf

import numpy as np

from collbench.analyze.sessions import launches_of
from collbench.model.comparisons import SLOWER, ChangeVerdict
from collbench.model.notices import Kind, Notice
from collbench.model.records import Run, Samples
from collbench.model.units import format_bytes
from collbench.packages.tune.analyze import choosing
from collbench.packages.tune.analyze.choosing import Names, Times
from collbench.packages.tune.catalog import FileRead, Library
from collbench.packages.tune.rules import (
    DEFAULT,
    FROM_FILE,
    Assigned,
    Cell,
    CellResult,
    Pick,
    Picks,
    Tuned,
    Why,
    cell_of,
    choice_of,
)
from collbench.stats.intervals import Floats, launch_interval

# Verdict of a comparison → reason in the table.
FOUND = {verdict: Why[verdict.name] for verdict in ChangeVerdict}


def times_of(samples: Sequence[Samples], assigned: Assigned) -> Times:
    """Collect the logarithm of the mean time, in seconds, of each cell, choice and launch; leave out failures."""
    times: Times = {}
    for entry in samples:
        if entry.failure is None and entry.timed is not None:
            logs = times.setdefault(cell_of(entry.case), {}).setdefault(choice_of(assigned, entry.case), {})
            logs[entry.launch] = float(np.log(np.mean(entry.timed.slowest_s)))
    return times


def _failed(samples: Sequence[Samples], assigned: Assigned, last: float = inf) -> dict[tuple[Cell, Pick], str]:
    """Return the cells and choices that failed in launches up to number `last`, with the text of the first failure."""
    first_failures: dict[tuple[Cell, Pick], tuple[int, str]] = {}
    for entry in samples:
        if entry.failure is not None and entry.failure.kind != "lost" and entry.launch <= last:
            key = cell_of(entry.case), choice_of(assigned, entry.case)
            failure = entry.launch, entry.failure.text
            first_failures[key] = min(first_failures.get(key, failure), failure)
    return {key: text for key, (_, text) in first_failures.items()}


def left_after(samples: Sequence[Samples], assigned: Assigned, named: Names, rounds: int) -> dict[Cell, list[Pick]]:
    """Return the choices of each cell that are left after this many rounds of a race, without failed choices."""
    failed = _failed(samples, assigned, rounds)
    sound = {cell: [choice for choice in choices if (cell, choice) not in failed] for cell, choices in named.items()}
    return choosing.raced(times_of(samples, assigned), sound, rounds)


def proven(
    samples: Sequence[Samples], assigned: Assigned, picks: Picks, launches: range, min_change: float
) -> dict[Cell, Pick]:
    """Return the table: choices that these launches show to be faster. Failures and other cells keep the default."""
    failed = _failed(samples, assigned, launches.stop - 1)
    faster = choosing.faster(choosing.compared(times_of(samples, assigned), picks, launches), min_change)
    return {cell: c if cell in faster and (cell, c) not in failed else DEFAULT for cell, c in picks.items()}


def tuned(
    samples: Sequence[Samples], assigned: Assigned, picks: Picks, table: Picks, proving: Sequence[int],
    checking: Sequence[int], min_change: float,
) -> Tuned:  # fmt: skip
    """Return the outcome of a race, its proof, and the last launches, which drop rules that are slower or fail."""
    times, failed = times_of(samples, assigned), _failed(samples, assigned)
    read = _as_measured(times, table, checking)
    verdicts = choosing.judged(choosing.compared(times, read, checking), min_change, choosing.WRONG_RATE)
    dropped = {cell: Why.THEN_SLOWER for cell, verdict in verdicts.items() if verdict == SLOWER}
    dropped |= {
        cell: Why.THEN_FAILED for cell, choice in table.items() if {(cell, choice), (cell, FROM_FILE)} & failed.keys()
    }
    final = {cell: DEFAULT if cell in dropped else choice for cell, choice in table.items()}
    ratios = choosing.compared(times, picks, proving)
    why = {cell: Why.NOT_FASTER if pick == DEFAULT else Why.TOO_FEW for cell, pick in picks.items()}
    why |= dict.fromkeys(ratios, Why.NO_GAIN)
    why |= {cell: dropped.get(cell, Why.FASTER_IN_FRESH) for cell, choice in table.items() if choice != DEFAULT}
    places = choosing.crossovers(times, final)
    overall = choosing.whole(times, {cell: read[cell] for cell in final if final[cell] != DEFAULT}, checking)
    outcome = Tuned((), tuple(choosing.rules_of(final, places)), tuple(places), *overall)
    return _with_results(outcome, samples, assigned, final, picks, ratios, why)


RULE_NOT_READ = Kind("rule-not-read", "not honoured: {problem}")


def checked(
    samples: Sequence[Samples], assigned: Assigned, file: FileRead, table: Picks, launches: Sequence[int],
    min_change: float,
) -> Tuned:  # fmt: skip
    """Return the outcome of the check of an existing rule file."""
    times = times_of(samples, assigned)
    read = _as_measured(times, table, launches)
    ratios = choosing.compared(times, read, launches)
    why = {cell: Why.NO_RULE if choice == DEFAULT else Why.NOT_MEASURED for cell, choice in table.items()}
    why |= {cell: FOUND[verdict] for cell, verdict in choosing.judged(ratios, min_change, choosing.RACE_RATE).items()}
    notes = (*(RULE_NOT_READ(problem=problem) for problem in file.problems), *file.notes)
    outcome = Tuned((), file.rules, (), *choosing.whole(times, read, launches), notes=notes)
    return _with_results(outcome, samples, assigned, table, table, ratios, why)


def _with_results(
    outcome: Tuned, samples: Sequence[Samples], assigned: Assigned, table: Picks, tried: Picks,
    ratios: Mapping[Cell, Floats], why: Mapping[Cell, Why],
) -> Tuned:  # fmt: skip
    """Add the results, the number of launches, and texts on choices that failed with the sizes at which they did."""
    intervals = {cell: launch_interval(np.exp(logs)) for cell, logs in ratios.items()}
    results = tuple(
        CellResult(cell, table[cell], tried[cell], why[cell], intervals.get(cell), len(ratios.get(cell, ())))
        for cell in sorted(table)
    )
    launches = {(entry.case.world_size, entry.case.settings, entry.launch) for entry in samples}
    sizes: dict[str, list[str]] = {}
    for (cell, choice), text in sorted(_failed(samples, assigned).items()):
        sizes.setdefault(f"{cell.op}, {cell.ranks} ranks, {choice}: {text}", []).append(format_bytes(cell.size))
    wrong = tuple(f"{words} ({', '.join(failed_sizes)})" for words, failed_sizes in sizes.items())
    return replace(outcome, results=results, launches=len(launches), wrong=wrong)


def _as_measured(times: Times, table: Picks, launches: Sequence[int]) -> dict[Cell, Pick]:
    """Return the choice that a check measured per rule: FROM_FILE if a side read the file, else the rule's choice."""
    read = {cell for cell, logs in times.items() if set(launches) & logs.get(FROM_FILE, {}).keys()}
    return {cell: FROM_FILE if cell in read else pick for cell, pick in table.items() if pick != DEFAULT}


NOT_HONOURED = Kind(
    "not-honoured", "not honoured: {op}, {ranks} ranks, {size_bytes:bytes}: asked for {asked}, {library} ran {ran}"
)
# Notices that the library does not follow the rule file.
DISHONOURED = frozenset({RULE_NOT_READ, NOT_HONOURED})


def not_honoured(run: Run, library: Library, assigned: Assigned, table: Picks) -> list[Notice]:
    """Return notices on cells in which the library reports another choice than requested (only NCCL reports it).

    table: choice of the rule file for each cell, for launches that read it.
    """
    reported = {
        key: " ".join((choice["algorithm"].lower(), choice["protocol"].lower()))
        for launch in launches_of(run.environment)
        for key, choice in (launch.get("chosen") or {}).items()
    }
    notices = []
    for case in run.plan.cases:
        asked, ran = choice_of(assigned, case), reported.get(case.key)
        asked = table.get(cell_of(case), DEFAULT) if asked == FROM_FILE else asked
        if ran is not None and asked != DEFAULT and ran != f"{asked.algorithm} {asked.protocol}":
            told = NOT_HONOURED(
                [case.key], op=case.op, ranks=case.world_size, size_bytes=case.size_bytes,
                asked=str(asked), library=library.name, ran=ran,
            )  # fmt: skip
            notices.append(told)
    return notices
