"""Assemble the readings of one or more files into one run: plan, samples, facts for its manifest and environment.

In: a `ReadFile` per file. Out: an `Imported`. The k-th number of a case becomes its launch k, in the order of the files
and of their rows. Writes nothing and prints nothing.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, TypeVar

from collbench.model.errors import ForeignError
from collbench.model.notices import Kind, Notice, with_counts
from collbench.model.projection import grouped
from collbench.model.records import Case, Json, Launch, Plan, Samples, Sampling, Settings
from collbench.packages.interop.importers import nccl_tests, osu
from collbench.packages.interop.importers.context import difference
from collbench.packages.interop.importers.readings import LEFT_OUT, Number, Options, ReadFile, Source

# Format, as the command line names it → the function that reads one file.
READERS: dict[str, Callable[[Source, Options], ReadFile]] = {"nccl-tests": nccl_tests.read, "osu": osu.read}
# Start time of a case, which is not in the output of other tools.
UNKNOWN_TIME_S = 0.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Imported:
    """A run that is ready to be written and reported."""

    plan: Plan
    samples: tuple[Samples, ...]
    # Number of lines of tables, in all files.
    rows: int
    # Facts for the manifest, under the key `imported`, and session for environment.json.
    facts: Json
    session: Json


REPEATED_CASES = Kind(
    "repeated-cases",
    "{count:count case} more than once in one file (such as {operation} of {size_bytes:bytes}): each time counts "
    "as a launch, even if the same process measured it, which varies less than new processes do",
)


def assemble(format: str, name: str, files: Sequence[tuple[Source, ReadFile]]) -> Imported:  # noqa: A002
    """Make one run of all files. Raises ForeignError if nothing in them can be kept, or if two files are equal."""
    by_content: dict[str, Source] = {}
    for source, _ in files:
        twin = by_content.setdefault(source.sha256, source)
        if twin is not source:  # they would be two launches that agree perfectly
            raise ForeignError(f"{source.path}: the same output as {twin.path}; it would count as a launch of its own")
    readings = [reading for _, reading in files]
    numbers, mixed = _pooled(files)
    left_out = with_counts(sum((reading.left_out for reading in readings), mixed), "rows")
    if not numbers:
        names = ", ".join(source.name for source, _ in files)
        raise ForeignError(f"{names}: nothing to import", *left_out, *(() if left_out else ["no rows"]))

    launches, samples = Counter[Case](), list[Samples]()
    for number in numbers:
        launches[number.case] += 1
        aggregate = number.aggregate and replace(number.aggregate, verified=number.verified)
        entry = Samples(number.case, launches[number.case], UNKNOWN_TIME_S, stopped_by="imported")
        samples.append(replace(entry, failure=number.failure, aggregate=aggregate))
    order = grouped(samples, lambda entry: (entry.case.backend, entry.case.world_size, entry.launch))
    iterations = max((n.aggregate.iterations for n in numbers if n.aggregate and n.aggregate.iterations), default=1)
    plan = Plan(
        name=name,
        order=tuple(Launch(*place, tuple(entry.case for entry in entries)) for place, entries in order.items()),
        skips=(),
        launches=max(launches.values()),
        # A plan needs these values; nothing reads them, because an imported run is not measured here.
        settings=Settings(Sampling(0, 0.0, iterations, None, 0.0, iterations), seed=0, timeout_s=0.0, pool_bytes=0),
    )

    notices = _joined(reading.notes for reading in readings)
    repeated = [
        case
        for reading in readings
        for case, times in Counter(number.case for number in reading.numbers).items()
        if times > 1 and case in launches
    ]
    if repeated:
        op, size = repeated[0].op, repeated[0].size_bytes
        notices.append(REPEATED_CASES(count=len(repeated), operation=op, size_bytes=size))
    notices += [*_joined(reading.unknown for reading in readings), *left_out]
    verified = Counter(number.verified for number in numbers)
    facts: Json = {
        "format": format,
        "tool": _joined(reading.tools for reading in readings),
        "files": [{"name": source.name, "sha256": source.sha256} for source, _ in files],
        "statistic": _joined([number.aggregate.statistic] for number in numbers if number.aggregate is not None),
        "unread": [
            {"file": source.name, "line": line.number, "text": line.text}
            for source, reading in files
            for line in reading.unread
        ],
        "notices": [{"kind": entry.kind, "values": entry.values} for entry in notices],
        # Numbers of results, by the verification of the tool itself.
        "verified": {"right": verified[True], "wrong": verified[False], "not checked": verified[None]},
    }
    imported = {"source": "the imported files", "tool": facts["tool"]}
    imported |= _merged([fact for reading in readings for fact in reading.facts])
    session = {"imported": imported, "launches": [launch for reading in readings for launch in reading.launches]}
    return Imported(plan, tuple(samples), sum(reading.rows for reading in readings), facts, session)


OTHER_SETTINGS = Kind(
    "other-settings",
    f"{LEFT_OUT}measured under other settings ({{first}}; {{second}}): import each setting from a file of its own",
)


def _pooled(files: Sequence[tuple[Source, ReadFile]]) -> tuple[list[Number], Counter[Notice]]:
    """Return the numbers of cases whose tables have equal facts, and the number of other rows, by what differs."""
    numbers = [(source, number) for source, reading in files for number in reading.numbers]
    tables: dict[Case, dict[Any, tuple[Source, dict[str, Any]]]] = defaultdict(dict)
    for source, number in numbers:
        tables[number.case][source.path, frozenset(number.context.items())] = source, number.context
    mixed: dict[Case, Notice] = {}
    for case, facts in tables.items():
        for (file, first), (other_file, second) in combinations(facts.values(), 2):
            if (texts := difference(first, second, file is other_file)) is not None:
                places = [f"{source.name}: {text}" for source, text in zip((file, other_file), texts, strict=True)]
                mixed[case] = OTHER_SETTINGS(first=places[0], second=places[1])
                break
    rows = dict.fromkeys((id(n.context), n.case.size_bytes, mixed[n.case]) for _, n in numbers if n.case in mixed)
    return [n for _, n in numbers if n.case not in mixed], Counter(reason for _, _, reason in rows)


def explanation(imported: Imported) -> bytes:
    """Return the comment lines that replace the configuration in the run's folder."""
    facts = imported.facts
    lines = [f"imported from {', '.join(facts['tool'])}; nothing here was measured by CollBench"]
    lines += [f"file: {file['name']} (sha256 {file['sha256']})" for file in facts["files"]]
    return "".join(f"# {' '.join(line.split())}\n" for line in lines).encode()


def _joined(parts: Iterable[Sequence[T]]) -> list[T]:
    """Return all entries of the parts in order, each entry once."""
    return list(dict.fromkeys(entry for part in parts for entry in part))


def _merged(facts: Sequence[Json]) -> Json:
    """Combine the facts of all executions: join lists and texts, merge dictionaries."""
    merged: Json = {}
    for name in dict.fromkeys(name for entry in facts for name in entry):
        values = [entry[name] for entry in facts if name in entry]
        if isinstance(values[0], dict):
            merged[name] = dict(item for value in values for item in value.items())
        else:
            merged[name] = " / ".join(dict.fromkeys(values)) if isinstance(values[0], str) else _joined(values)
    return merged
