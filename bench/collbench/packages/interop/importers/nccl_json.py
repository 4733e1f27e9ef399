"""Parse the JSON of nccl-tests (-J, from version 2 on) and of rccl-tests (-Z json) into sections.

nccl-tests dumps the whole environment, credentials included: only variables of the allow-list are kept, and the others
are counted. In its JSON booleans are strings, the list of errors may contain an empty string, and
only the command line names the collective. Everything else in the document is ignored.

With -I 1, `per_process_max_times_us` has for each process the time of each call: the longest time of its devices. -K is
the number of leading calls that the tool's own summary leaves out; they are left out here, too (`common.cu` and
`util.cu` of NVIDIA/nccl-tests at e1dc979, 2026).
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from collbench.catalog.variables import allowed
from collbench.model.errors import ForeignError, damaged_json
from collbench.model.records import Json
from collbench.packages.interop.catalog import NO_REDUCE_OP
from collbench.packages.interop.importers.context import COMMAND, OUTPUT, LogFact, LogFacts
from collbench.packages.interop.importers.nccl_text import READ, Half, Row, Section, version_of
from collbench.packages.interop.importers.readings import LEAST_US, Printed, whole, within

# The tool writes six decimals, of microseconds and of GB/s.
HALF_DIGIT = 0.5e-6
# Argument of -z → role of the barrier. For other arguments, the barrier is part of the time.
BLOCKING = {"2": "no barrier", "3": "barrier outside"}
# Argument of -a → how the times of ranks are combined.
AVERAGES = {"0": "of rank 0", "1": "averaged over ranks", "2": "minimum over ranks", "3": "maximum over ranks"}


def sections(text: str, where: str) -> list[Section]:
    """Return the executions of a document. Raises ForeignError if it is no JSON of these tools."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ForeignError(damaged_json(where, error)) from None
    rows = [row for row in (document if isinstance(document, list) else [document]) if isinstance(row, dict)]
    if any("collbench" in row for row in rows):
        raise ForeignError(f"{where}: CollBench wrote it, from a run of its own: use that run")
    if isinstance(document, list) and any("size" in row for row in rows):
        return _rccl_sections(rows)
    if not isinstance(document, dict) or not isinstance(document.get("results"), list):
        raise ForeignError(f"{where}: JSON, but not of nccl-tests (it has no list of results)")
    if _whole(document.get("version")) == 1:
        raise ForeignError(f"{where}: JSON version 1; JSON version 2 or newer, and text of {READ} is read")
    return [_nccl_section(document)]


# ── nccl-tests ───────────────────────────────────────────────────────────────────────────────────
def _nccl_section(document: Json) -> Section:
    config, args = _object(document.get("config")), [str(arg) for arg in _list(document.get("args"))]
    version, command = _whole(document.get("nccl_version")), " ".join(args)
    # `all_reduce` from `/somewhere/all_reduce_perf`, which may follow the command of a wrapper.
    commands = [arg.replace("\\", "/").rsplit("/", 1)[-1] for arg in args]
    tests = [name.split("_perf")[0] for name in commands if "_perf" in name]
    listed = [_object(device) for device in _list(config.get("devices"))]
    facts = {**config, "nccl": version, "devices": [{**device, "pid": 0} for device in listed]}
    context = {name: LogFact(f"{name} {json.dumps(fact)}") for name, fact in facts.items()}
    context[COMMAND] = LogFact(OUTPUT.sub("", command))
    devices = [
        {
            **{name: _whole(device.get(name)) or 0 for name in ("rank", "group")},
            "hostname": str(device.get("hostname", "")),
            "device_name": str(device.get("device_info", "")),
        }
        for device in listed
    ]
    environment = document.get("env")
    entries = [f"{name}={value}" for name, value in _object(environment).items()] or map(str, _list(environment))
    variables = [(name, value) for name, _, value in (entry.partition("=") for entry in entries)]
    kept = allowed(variables)
    context |= {name: LogFact(f"{name}={value}") for name, value in kept.items()}
    results = [_object(result) for result in _list(document["results"])]
    rows = [_row(result, config, context) for result in results if _whole(result.get("size")) is not None]
    blocking = BLOCKING.get(_option(command, "z", "blocking"), "barrier")
    return Section(
        test=next((test for test in tests if "." not in test), None),
        tool=f"nccl-tests (JSON version {document.get('version', 'unknown')!s:.20})",
        nccl=version_of(version) if version else None,
        ranks=devices,
        expected_ranks=_world_size(devices, config),
        iterations=_whole(config.get("iterations")),
        aggregated=_whole(config.get("aggregated_iterations")) or 1,
        graph=_whole(config.get("graph")) or 0,
        blocking=blocking if _true(config.get("blocking_collectives")) else "",
        average=AVERAGES.get(_option(command, "a", "average", "1")) if args else None,
        registered=_option(command, "R", "local_register") != "0",
        cpu_time=any("cpu_time" in _object(result.get("out_of_place")) for result in results),
        timed_each=_true(config.get("per_iter_timing")),
        parallel_init=_true(config.get("parallel_init")),
        out_of_bounds=_whole(_object(document.get("out_of_bounds")).get("count")),
        rows=rows,
        cut=len(results) - len(rows),
        variables=kept,
        dropped=len(variables) - len(kept) if isinstance(environment, dict | list) else None,
        errors=[str(error)[:200] for error in _list(document.get("errors")) if error],
    )


def _row(result: Json, config: Json, context: LogFacts) -> Row:
    halves = []
    for place, key in (("out", "out_of_place"), ("in", "in_place")):
        if half := _object(result.get(key)):
            each = _object(result.get(f"{key}_per_iter"))
            skipped = _whole(each.get("skipped_iterations", config.get("per_iter_skip"))) or 0
            each_us = tuple(filter(None, (process[skipped:] for process in _each_us(each))))
            halves.append(_half(place, half, each_us, skipped if each_us else 0))
    size, count, root = (_whole(result.get(name)) for name in ("size", "count", "root"))
    dtype, redop = str(result.get("type", "")), str(result.get("redop", NO_REDUCE_OP))
    return Row(size or 0, count or 0, dtype, redop, root, halves, _whole(result.get("actual_iterations")), context)


def _world_size(devices: Sequence[Json], config: Json) -> int | None:
    """Return the number of ranks. The tool wrongly lists only the first device of a process with several devices."""
    each = (_whole(config.get("nthreads")) or 1) * (_whole(config.get("ngpus")) or 1)
    numbers = sorted({device["rank"] for device in devices})
    if each > 1 and numbers == [each * process for process in range(len(numbers))]:
        return each * len(numbers) or None
    return numbers[-1] + 1 if numbers else None


def _each_us(times: Json) -> tuple[tuple[float, ...], ...]:
    """Return the time of each call, per process if the file separates processes; empty if a value is not a time."""
    for lists in (_list(times.get("per_process_max_times_us")), [times.get("times_us")]):
        numbers = [[_number(value) for value in _list(values)] for values in lists]
        processes = [[number.value for number in each if number and number.value >= LEAST_US] for each in numbers]
        if [*map(len, processes)] == [*map(len, numbers)] and len({*map(len, processes)}) == 1:
            return tuple(map(tuple, processes))
    return ()


def _half(place: str, half: Json, each_us: tuple[tuple[float, ...], ...] = (), skipped: int = 0) -> Half:
    time, wrong = _number(half.get("time", half.get("cpu_time"))), half.get("nwrong")
    rates = _number(half.get("alg_bw")), _number(half.get("bus_bw"))
    return Half(place, time, *rates, "N/A" if wrong is None else str(wrong), each_us, skipped)


def _option(command: str, short: str, long: str, default: str = "0") -> str:
    """Return the last value of an option, in any spelling: -a 3, -a3, --average 3, --average=3."""
    given: list[str] = re.findall(rf"(?<!\S)(?:-{short}\s*|--{long}[\s=])(\d+)", command)
    return [default, *given][-1]


# ── rccl-tests ───────────────────────────────────────────────────────────────────────────────────
def _rccl_sections(rows: Sequence[Json]) -> list[Section]:
    """Make a section of each cycle, because cycles repeat the same cases. rows: one object per placement and size."""
    by_cycle: dict[tuple[str, int, int | None], Section] = {}
    for row in rows:
        size, ranks = _whole(row.get("size")), _whole(row.get("ranks")) or _whole(row.get("gpus"))
        test, cycle = str(row.get("name", row.get("collective", ""))), _whole(row.get("numCycle")) or 0
        new = Section(test=test.lower(), tool="rccl-tests (JSON)", expected_ranks=ranks)
        section = by_cycle.setdefault((test, cycle, ranks), new)
        if size is None:
            section.cut += 1
            continue
        names = {"time": "time", "alg_bw": "algBw", "bus_bw": "busBw", "nwrong": "wrong"}
        half = _half("in" if _true(row.get("inPlace")) else "out", {name: row.get(names[name]) for name in names})
        section.rows.append(Row(size, 0, str(row.get("type", "")), str(row.get("redop", NO_REDUCE_OP)), None, [half]))
    return list(by_cycle.values())


# ── values that may have the wrong type ──────────────────────────────────────────────────────────
def _object(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _true(value: Any) -> bool:
    return str(value).lower() in {"true", "1"}


def _whole(value: Any) -> int | None:
    """Read a whole number; some numbers are written as text with leading blanks."""
    return whole(str(value)) if isinstance(value, int | str) else None


def _number(value: Any) -> Printed | None:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return within(number, HALF_DIGIT) if abs(number) < float("inf") else None
