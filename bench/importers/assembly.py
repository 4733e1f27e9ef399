"""Assemble the readings of one or more files into one run: plan, samples, facts for its manifest and environment.

In: a `Reading` per file. Out: an `Imported`. The k-th number of a case is its launch k, in the order of the files and
of their rows. Writes nothing and prints nothing.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.importers.found import Number, Reading
from bench.importers.sources import Source
from bench.model.errors import ForeignError
from bench.model.records import Case, Json, Launch, Plan, Samples, Sampling
from bench.model.units import format_bytes

# When a case began, which the output of other tools does not tell.
UNKNOWN_TIME_S = 0.0


@dataclass(frozen=True, slots=True)
class Imported:
    """A run, ready to be written and reported. rows: lines of tables, in all files.

    facts: for the manifest, under the key `imported`. session: for environment.json.
    """

    plan: Plan
    samples: tuple[Samples, ...]
    rows: int
    facts: Json
    session: Json


def assemble(format: str, name: str, files: Sequence[tuple[Source, Reading]]) -> Imported:  # noqa: A002
    """Make one run of all files. Raises ForeignError if nothing in them can be kept, or if two are the same."""
    _refuse_repeats([source for source, _ in files])
    readings = [reading for _, reading in files]
    left_out = sum((reading.left_out for reading in readings), Counter[str]())
    numbers = [number for reading in readings for number in reading.numbers]
    if not numbers:
        reasons = "; ".join(f"{count} rows: {reason}" for reason, count in left_out.items()) or "no rows"
        raise ForeignError(f"{', '.join(source.name for source, _ in files)}: nothing to import ({reasons})")
    samples = _samples(numbers)
    facts: Json = {
        "format": format,
        "tool": _joined(reading.tools for reading in readings),
        "files": [{"name": source.name, "sha256": source.sha256} for source, _ in files],
        "statistic": _joined([n.aggregate.statistic] for n in numbers if n.aggregate is not None),
        "left_out": dict(left_out),
        "notes": [*_joined(reading.notes for reading in readings), *_within_one_file(readings)],
        "unknown": _joined(reading.unknown for reading in readings),
        "verified": _verified(numbers),
    }
    session = {"imported": {"source": "as the files tell it", "tool": facts["tool"], **_merged(readings)}}
    return Imported(_plan(name, samples), tuple(samples), sum(r.rows for r in readings), facts, session)


def _refuse_repeats(sources: Sequence[Source]) -> None:
    """Raise ForeignError if two files are the same: they would be two launches that agree perfectly."""
    seen: dict[str, Source] = {}
    for source in sources:
        twin = seen.setdefault(source.sha256, source)
        if twin is not source:
            raise ForeignError(f"{source.path}: the same output as {twin.path}; it would count as a launch of its own")


def explanation(imported: Imported) -> bytes:
    """The comment lines that take the place of a configuration in the run's folder."""
    facts = imported.facts
    lines = [f"imported from {', '.join(facts['tool'])}; nothing here was measured by CollBench"]
    lines += [f"file: {file['name']} (sha256 {file['sha256']})" for file in facts["files"]]
    return "".join(f"# {_one_line(line)}\n" for line in lines).encode()


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _samples(numbers: Sequence[Number]) -> list[Samples]:
    launches: dict[Case, int] = defaultdict(int)
    found = []
    for number in numbers:
        launches[number.case] += 1
        found.append(
            Samples(
                number.case,
                launches[number.case],
                UNKNOWN_TIME_S,
                stopped_by="imported",
                failure=number.failure,
                aggregate=number.aggregate,
            )
        )
    return found


def _plan(name: str, samples: Sequence[Samples]) -> Plan:
    together: dict[tuple[str, int, int], list[Case]] = defaultdict(list)
    for one in samples:
        together[one.case.backend, one.case.world_size, one.launch].append(one.case)
    iterations = [one.aggregate.iterations for one in samples if one.aggregate and one.aggregate.iterations]
    return Plan(
        name=name,
        order=tuple(Launch(*where, tuple(cases)) for where, cases in together.items()),
        skips=(),
        launches=max(one.launch for one in samples),
        seed=0,
        # A plan needs these values; nothing reads them, because an imported run is not measured here.
        sampling=Sampling(0, 0.0, max(iterations, default=1), 0.05, 0.0, max(iterations, default=1)),
        timeout_s=0.0,
        pool_bytes=0,
    )


def _joined(parts: Iterable[Sequence[str]]) -> list[str]:
    """All texts, each once, in order."""
    return list(dict.fromkeys(text for part in parts for text in part))


def _within_one_file(readings: Sequence[Reading]) -> list[str]:
    """A note if one file holds a case several times, which counts as several launches."""
    repeated = [
        case
        for reading in readings
        for case, times in Counter(number.case for number in reading.numbers).items()
        if times > 1
    ]
    if not repeated:
        return []
    return [
        f"{len(repeated)} cases stand in one file more than once (such as {repeated[0].op} of "
        f"{format_bytes(repeated[0].size_bytes)}): each time counts as a launch, also where it was the same process, "
        "which differs less than fresh ones do"
    ]


def _verified(numbers: Sequence[Number]) -> Json:
    """How many results the tool itself found right, found wrong, and did not check."""
    found = Counter(number.verified for number in numbers)
    return {"right": found[True], "wrong": found[False], "not checked": found[None]}


def _merged(readings: Sequence[Reading]) -> Json:
    """The facts of all files: lists and texts joined, dictionaries merged."""
    merged: Json = {}
    for reading in readings:
        for fact, value in reading.facts.items():
            if isinstance(value, dict):
                merged[fact] = {**merged.get(fact, {}), **value}
            elif isinstance(value, list):
                merged[fact] = list(dict.fromkeys([*merged.get(fact, []), *value]))
            else:
                merged[fact] = " / ".join(dict.fromkeys([*filter(None, merged.get(fact, "").split(" / ")), value]))
    return merged
