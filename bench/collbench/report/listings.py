"""Write the lists that `list` prints on a terminal.

In: manifests, the tables of operations and backends, configurations. Out: blocks. Loads neither pandas nor the model
of configurations, so that `list` answers quickly.
"""

import itertools
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import cast

from collbench.catalog.backends import BACKENDS, Backend
from collbench.catalog.collectives import OPERATIONS, PLACES
from collbench.catalog.operation import Operation
from collbench.catalog.rules import unsupported_by_backend, unsupported_operation
from collbench.catalog.variables import AT_START, TUNING
from collbench.model.facts import Manifest
from collbench.model.notices import Kind, Notice, kinds
from collbench.model.pages import page
from collbench.model.projection import grouped
from collbench.model.records import Case, Json
from collbench.model.units import counted, format_bytes, format_rate, format_seconds
from collbench.report import wording
from collbench.report.blocks import Blocks, Column, keyed, left, table
from collbench.report.labels import NOTHING, ranks_text
from collbench.report.notices import sentence

# Bus factor at 4 ranks → its formula.
FACTORS = {1.0: "1", 0.75: "(n-1)/n", 1.5: "2(n-1)/n"}


# ── runs ────────────────────────────────────────────────────────────────────────────────────────
def runs(entries: Iterable[tuple[str, Json, str]]) -> Blocks:
    """Return one line per run. entries: names, manifests, and best result from the summaries."""
    columns: list[Column[tuple[str, Json, str]]] = [
        left("run (UTC)", lambda row: row[0]),
        left("status", lambda row: wording.state(cast("Manifest", row[1]))),
        left("best result", lambda row: row[2]),
    ]
    return table(entries, columns)


def headline(rows: Sequence[Mapping[str, str]]) -> str:
    """Return the best result in a summary."""
    measured = [row for row in rows if row.get("time_s")]
    # The records of a package may rank their cases: "place" is 1 for the best, and "label" names a case.
    if placed := [row for row in measured if row.get("place")]:
        best = min(placed, key=lambda row: float(row["time_s"]))
        named = [option.name for option in OPERATIONS[best["op"]].own_options if option.first and option.default == ""]
        parts = [best["label"], *map(best.get, named), best["backend"], ranks_text(int(best["world_size"]))]
        return f"{format_seconds(float(best['time_s']))}: {', '.join(map(str, parts))}"
    best = max(measured, key=lambda row: float(row.get("busbw") or 0), default={})
    if not float(best.get("busbw") or 0):
        return NOTHING
    rate, size = format_rate(float(best["busbw"])), format_bytes(int(best["size_bytes"]))
    return f"{rate} GB/s: {best['op']}, {ranks_text(int(best['world_size']))}, {size}"


# ── the catalog ──────────────────────────────────────────────────────────────────────────────────
def operations() -> Blocks:
    """Return the table of operations, if possible on one line each: which bytes size counts, and the bus factor."""
    columns: list[Column[Operation]] = [
        left("operation", lambda op: op.name),
        # The whole sentence is in the notes on the tables of a run.
        left(
            "size: the bytes …",
            lambda op: re.split("[,;:(]", op.size_means.removeprefix("bytes "))[0].strip() if op.sized else NOTHING,
        ),
        left("bus factor", _factor),
    ]
    hint = f"Missing operations of a backend: list backends. The options of each: {page('configuration')}."
    return [*table(OPERATIONS.values(), columns), hint]


def _factor(op: Operation) -> str:
    """Return busbw / algbw as a formula, or its value at 4 ranks if FACTORS has no formula for it."""
    value = op.bus_factor(4) if op.bus_factor is not None else None
    return NOTHING if value is None else FACTORS.get(value, f"{value:g} at n = 4")


def _lacks(op: str, backend: str) -> str:
    """Describe what the backend does not support for this operation, apart from its limits for all operations."""
    table, operation = BACKENDS[backend], OPERATIONS[op]
    missing = unsupported_operation(op, table)
    if missing is not None:
        return sentence(missing)
    lacks = [f"no {', '.join(sorted(table.unsupported_dtypes_of[op]))}"] if op in table.unsupported_dtypes_of else []
    for place in operation.placements[1:]:  # the first is the usual one
        if unsupported_by_backend(Case(op, backend, 2, "float32", 2**20, placement=place)) is not None:
            lacks.append(f"not {PLACES[place]}")
    return "; ".join(lacks)


def backends(missing: Mapping[str, Notice]) -> Blocks:
    """Return the tables of backends: whether they can be used here, and what they do not support."""

    def named(names: Iterable[str]) -> str:
        return ", ".join(sorted(names)) or NOTHING

    usable: list[Column[Backend]] = [
        left("backend", lambda b: b.name),
        left("device", lambda b: b.device),
        left("what it is", lambda b: b.description),
        left("usable here", lambda b: sentence(missing[b.name]) if b.name in missing else "yes"),
    ]
    unsupported: list[Column[Backend]] = [
        left("backend", lambda b: b.name),
        left("unsupported dtypes", lambda b: named(b.unsupported_dtypes)),
        left("moved but not reduced", lambda b: named(b.unsupported_reduce_dtypes)),
        left("unsupported reduce ops", lambda b: named(b.unsupported_reduce_ops)),
        left(
            "unsupported operations",
            lambda b: named(op for op in OPERATIONS if unsupported_operation(op, b) is not None),
        ),
    ]
    single: list[Column[str]] = [left("operation", lambda op: op)]
    single += keyed([(name, name) for name in BACKENDS], _lacks, "left")
    limited = [op for op in OPERATIONS if any(_lacks(op, name) for name in BACKENDS)]
    several = BACKENDS.values()
    limits = ["Unsupported for single operations:", *table(limited, single)]
    return [*table(several, usable), *table(several, unsupported), *limits]


def variables() -> Blocks:
    """Return the environment variables that may be set for ranks, by the library that they tune."""
    names_by_library = grouped(TUNING, TUNING.__getitem__) | {"sides of ab only": sorted(AT_START)}
    return [f"{library}: {', '.join(names)}" for library, names in names_by_library.items()]


def notices() -> Blocks:
    """Return one line per kind of notice: its name, sentence and remedy, with names in place of values."""
    columns: list[Column[Kind]] = [
        left("kind", str),
        left("sentence", lambda kind: _readable(kind.text)),
        left("remedy", lambda kind: _readable(kind.remedy)),
    ]
    return table(kinds(), columns)


def _readable(template: str) -> str:
    """Return a template with the names of its values in angle brackets in place of the values."""

    def named(name: str | None, spec: str | None) -> str:
        if name is None:
            return ""
        word = f"<{name.replace('_', ' ')}>"
        match (spec or "").partition(" "):
            case "count", _, noun:
                return f"{word} {counted(2, noun).partition(' ')[2]}"
            case "after", _, rest:
                return f"[{rest.partition('|')[0]}{word}]"
        return word

    return "".join(text + named(name, spec) for text, name, spec, _ in string.Formatter().parse(template))


def configs(files: Sequence[Path], use: str = "run NAME measures one") -> Blocks:
    """Return the names of YAML files, with the first sentence of their comment, their folders, and their use."""

    def purpose(path: Path) -> str:
        lines = path.read_text(encoding="utf-8").splitlines()
        head = itertools.takewhile(lambda line: line.startswith("#"), lines)
        comment = " ".join(line.lstrip("# ") for line in head if "yaml-language-server" not in line)
        return re.split(r"(?<=\.) ", comment, maxsplit=1)[0]

    columns: list[Column[Path]] = [left("name", lambda path: path.stem), left("what it is for", purpose)]
    folders = ", ".join(dict.fromkeys(str(path.parent) for path in files))
    return [*table(files, columns), f"Files: {folders}. {use}; a path of your own ends in .yaml."]
