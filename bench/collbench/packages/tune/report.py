"""Write the outcome of tuning: the answer in sentences, the table, how to load the file, and the same as JSON.

In: the outcome. Out: blocks, a dictionary, comments for the rule file. Computes only layout.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from collbench.model.conclusions import Interval
from collbench.model.projection import grouped
from collbench.model.records import Json, Run
from collbench.model.units import counted, first_few, format_bytes, format_rounded_bytes, format_seconds
from collbench.packages.tune.catalog import Library
from collbench.packages.tune.rules import DEFAULT, CellResult, Crossover, Tuned, TuneState, Why
from collbench.report.blocks import Blocks, Code, Column, Heading, Picture, below, items, left, section, table
from collbench.report.labels import NOTHING, between, optional, ranks_text
from collbench.report.notices import sentences
from collbench.report.rows import row

METHOD = (
    "All choices of a cell take turns in launches that are alive together. A choice that is slower than the best is "
    "dropped (Bayes factor; the best itself is dropped in at most 5 % of the cells). The best is then compared with "
    "the default in fresh launches only. It has a rule if it is faster there, by Student's t on log ratios of pairs, "
    "so that on average at most 1 % of the rules are wrong (Benjamini and Hochberg). The table is then measured once "
    "more, and a rule that is slower there, or fails, is dropped. Between two sizes, times are interpolated "
    "linearly; outside of the measured sizes the default stays."
)

# Reasons whose words are not those of their names.
WHYS: Mapping[Why, str] = {
    Why.NOT_FASTER: "nothing was faster in the race",
    Why.NO_GAIN: "no gain shown",
    Why.THEN_SLOWER: "faster in fresh launches, slower in those after them",
    Why.THEN_FAILED: "faster in fresh launches, failed in those after them",
}


def answer(tuned: Tuned, state: TuneState, load: Sequence[str]) -> Blocks:
    """Return the text for the terminal, without the line that loads the file, which must not be wrapped."""
    return [*_first(tuned, state), *(_table(tuned.changed) if state.checks else []), *load[1:]]


def _first(tuned: Tuned, state: TuneState) -> Blocks:
    remarks = items([*sentences(tuned.notes), *(f"failed: {text}" for text in tuned.wrong)])
    if state.checks:
        return [_checked(tuned), *remarks]
    places = grouped(tuned.crossovers, lambda place: (place.op, place.ranks))
    lines = [
        _rules_line(*key, results, places.get(key, []))
        for key, results in grouped(tuned.results, lambda result: (result.cell.op, result.cell.ranks)).items()
    ]
    return [_headline(tuned), *items(lines), *remarks]


def document(tuned: Tuned, library: Library, state: TuneState, load: Sequence[str], picture: str | None) -> Blocks:
    """Return the report."""
    title = f"A rule file of {library.name}, checked" if state.checks else f"Rules for {library.name}"
    blocks: Blocks = [Heading(title, 1), *_first(tuned, state)]
    if load:
        blocks += section("Load it", [Code("\n".join(load[:1])), *items(load[1:])])
    if picture is not None:
        blocks.append(Picture("Time over the default", picture))
    blocks += section(
        "Cells", below("Time ÷ time of the default, in fresh launches; below 1 is faster.", _table(tuned.results))
    )
    spent = f"Measured: {counted(tuned.launches, 'launch')}, {format_seconds(state.spent_s)}."
    return [*blocks, *section("Method", [METHOD, spent])]


def _headline(tuned: Tuned) -> str:
    """Format as `31 of 48 cells changed: together 0.78 of the time [0.75 – 0.81], …`."""
    changed, cells = len(tuned.changed), counted(len(tuned.results), "cell")
    if not changed:
        return f"no rule: of {cells}, none was shown to be faster than the default"
    kept = len(tuned.results) - changed
    together = ""
    if tuned.whole is not None:
        launches = f"{counted(tuned.checked, 'launch')} that were not used for choosing"
        together = f": together {_ratio(tuned.whole)} of the time, in {launches}"
    return f"{changed} of {cells} changed{together}; {kept} keep{'s' if kept == 1 else ''} the default"


def _checked(tuned: Tuned) -> str:
    """Format as `48 of 96 cells have a rule: 30 faster, 1 slower, 17 inconclusive; together 0.85 [0.80 – 0.90]`."""
    counts = Counter(result.why for result in tuned.changed)
    outcomes = ", ".join(f"{count} {_reason(why)}" for why, count in counts.items()) or "nothing to compare"
    together = f"; together {_ratio(tuned.whole)} of the default's time" if tuned.whole is not None else ""
    return f"{len(tuned.changed)} of {counted(len(tuned.results), 'cell')} have a rule: {outcomes}{together}"


def _ratio(interval: Interval) -> str:
    return f"{interval.value:.2f} [{between(f'{interval.low:.2f}', f'{interval.high:.2f}')}]"


def _reason(why: Why) -> str:
    return WHYS.get(why, why.replace("-", " "))


def _rules_line(op: str, ranks: int, results: Sequence[CellResult], places: Sequence[Crossover]) -> str:
    """Format as `all_reduce, 4 ranks: recursive_doubling up to 23 KiB [18 – 31 KiB], default above`."""
    low, high = (format_bytes(result.cell.size) for result in (results[0], results[-1]))
    parts = [f"{place.below} up to {_at(place)}" for place in places]
    if not places:
        parts = [f"{results[0].choice}, {low if low == high else between(low, high)}"]
    elif places[-1].above == DEFAULT:
        parts.append(f"{DEFAULT} above")
    else:
        parts.append(f"{places[-1].above} up to {high}, {DEFAULT} above")
    return f"{op}, {ranks_text(ranks)}: {', '.join(parts)}"


def _at(place: Crossover) -> str:
    at, low, high = map(format_rounded_bytes, (place.at, place.low, place.high))
    return at if low == high else f"{at} [{between(low, high)}]"


def _table(results: Sequence[CellResult]) -> Blocks:
    columns: list[Column[CellResult]] = [
        left("operation", lambda r: r.cell.op),
        Column("ranks", lambda r: str(r.cell.ranks)),
        Column("size", lambda r: format_bytes(r.cell.size)),
        left("rule", lambda r: str(r.choice)),
        left("tried", lambda r: NOTHING if r.tried in {r.choice, DEFAULT} else str(r.tried)),
        Column("÷ default", lambda r: optional(r.ratio, _ratio)),
        Column("pairs", lambda r: str(r.pairs) if r.pairs else NOTHING),
        left("why", lambda r: _reason(r.why)),
    ]
    return table(results, columns)


def comments(tuned: Tuned, run: Run, library: Library) -> list[str]:
    """Return the lines at the head of a rule file, in ASCII: program, run, hosts, versions, and each rule's gain."""
    launches = (launch for session in run.environment for launch in session.get("launches", []))
    ranks = [rank for launch in launches for rank in launch.get("ranks", [])]
    torch, mpi, nccl, hosts = (
        sorted({str(value) for rank in ranks if (value := rank.get(name))})
        for name in ("torch", "mpi", "nccl", "hostname")
    )
    where = first_few(hosts) or "unknown hosts"
    version = " and ".join(mpi) or f"{library.name} {' and '.join(nccl)}".strip()
    lines = [
        f"Written by CollBench {run.manifest.get('collbench', '')}, run {run.name}, on {where}",
        f"{version}, torch {' and '.join(torch) or 'unknown'}",
        _headline(tuned),
        "Each rule was faster than the default in fresh launches. time / default [95 %], pairs:",
    ]
    for result in tuned.changed:
        if result.ratio is not None:
            cell = f"{result.cell.op}, {result.cell.ranks} ranks, {format_bytes(result.cell.size)}"
            lines.append(f"  {cell}: {result.choice}: {_ratio(result.ratio)}, {result.pairs}")
    return [line.replace("–", "-").encode("ascii", "replace").decode() for line in lines]


def as_json(tuned: Tuned) -> Json:
    """Return the whole outcome, for programs."""
    return row(tuned)
