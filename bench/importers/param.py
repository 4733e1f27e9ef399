"""Read the output of PARAM's comms.py (facebookresearch/param, `COMMS-RES` rows): one `Number` per row.

In: a `Source`. Out: a `Reading`. The time is the column p50: the median over ranks of each rank's mean over its calls.
Sizes are those of all tensors of a rank, which is our total. Rows of quantised, overlapped and point-to-point
benchmarks are left out. Versions differ: old rows name neither the collective nor the dtype, later ones the
collective, the newest both.
"""

import re
from dataclasses import dataclass, replace

from bench.catalog.operations import OPERATIONS
from bench.importers import names
from bench.importers.found import (
    Number,
    Options,
    Printed,
    Reading,
    agrees,
    bus_factor,
    chosen_operation,
    chosen_ranks,
    printed,
    whole,
)
from bench.importers.sources import Source
from bench.model.errors import ForeignError
from bench.model.records import Aggregate, Case

DEFAULT_DTYPE = "float32"
US = 1e-6

_ROW = re.compile(r"COMMS-RES(?:-(QUANT))?(?:-([a-z]\w*))?(?:-([a-z]\w*))?(?:-\S+)?\s+(\d.*)", re.IGNORECASE)
_HEADER = re.compile(r"COMMS-RES\S*\s+(?:\S*size \(B\).*)")
_WORLD = re.compile(r"(?:world[_-]size|world size|\bnw)['\"]?\s*[:=]\s*(\d+)", re.IGNORECASE)
_GROUP = re.compile(r"groupSize:?\s+(\d+)")
_BACKEND = re.compile(r"\bbackend: (\w+)")
_MODE = re.compile(r"\bmode: ([\w-]+)")
_DTYPE = re.compile(r"dtype: (?:torch\.)?(\w+)")
_BLOCKING = re.compile(r"args\.z: (\d)")
_ITERATIONS = re.compile(r"--(?:n|num-iters)[ =](\d+)\b")
_COLLECTIVE = re.compile(r"--collectives?[ =]([a-z_]+)\b")


@dataclass(slots=True)
class _State:
    """Settings that the lines so far have told; None for those that they have not."""

    ranks: int | None = None
    group: int | None = None
    backend: str | None = None
    mode: str | None = None
    dtype: str | None = None
    blocking: bool | None = None
    iterations: int | None = None
    collective: str | None = None
    columns: tuple[str, ...] = ()


def read(source: Source, options: Options) -> Reading:
    """All tables in one file. Raises ForeignError if there is none, or if it does not say what is needed."""
    reading, state = Reading(tools=["PARAM comms.py"]), _State()
    where = str(source.path)
    for line in source.lines():
        if "COMMS-RES" not in line:
            _learn(line, state)
        elif _HEADER.search(line):
            columns = line.replace("size (B)", "size(B)").replace("Latency(us): Quant", "Quant")
            state.columns = tuple(columns.split("COMMS-RES", 1)[1].lower().split())
        elif (row := _ROW.search(line)) is not None:
            reading.rows += 1
            _row(row, state, options, where, source.name, reading)
    if not reading.rows:
        raise ForeignError(f"{where}: no COMMS-RES row of PARAM in it")
    return reading


def _learn(line: str, state: _State) -> None:
    """Read settings that are printed above the tables."""
    if (world := _WORLD.search(line)) is not None:
        state.ranks = whole(world[1])
    if (group := _GROUP.search(line)) is not None:
        state.group = whole(group[1])
    if (backend := _BACKEND.search(line)) is not None:
        state.backend = backend[1].lower()
    if (mode := _MODE.search(line)) is not None:
        state.mode = mode[1]
    if (dtype := _DTYPE.search(line)) is not None:
        state.dtype = dtype[1]
    if (blocking := _BLOCKING.search(line)) is not None:
        state.blocking = blocking[1] == "1"
    if (iterations := _ITERATIONS.search(line)) is not None:
        state.iterations = whole(iterations[1])
    if (collective := _COLLECTIVE.search(line)) is not None:
        state.collective = collective[1]


def _row(row: re.Match[str], state: _State, options: Options, where: str, name: str, reading: Reading) -> None:
    quantised, collective, dtype, rest = row.groups()
    named = dict(zip(state.columns, rest.split(), strict=False))
    reason = _unusable(quantised, collective, state, named, dtype)
    if reason is not None:
        reading.left_out[reason] += 1
        return
    size = whole(named.get("size(b)", rest.split()[0]))
    time = printed(named.get("latency(us):p50", ""))
    if size is None or size < 1 or time is None or time.value <= 0:
        reading.left_out["size 0" if size == 0 else "no time"] += 1
        return
    told = collective or state.collective
    op = names.PARAM[told] if told is not None else None
    if op is None and options.operation is None:
        op = names.operation_in(name)
    op = chosen_operation(op, options, where)
    ranks = chosen_ranks(state.ranks, options, where)
    case = replace(_case(op, dtype or state.dtype, ranks, state, reading), size_bytes=size)
    _check_rate(case, named, Printed(time.value * US, time.half * US), reading)
    reading.numbers.append(Number(case, Aggregate(time.value * US, _statistic(state), state.iterations)))


def _unusable(
    quantised: str | None, collective: str | None, state: _State, named: dict[str, str], dtype: str | None
) -> str | None:
    """Why a row cannot be a case; None if it can."""
    if quantised:
        return "quantised"
    if state.mode not in {None, "comms"}:
        return f"mode {state.mode}: not communication alone"
    if any(column.startswith("total-") for column in named):
        return "two collectives at once"
    told = collective or state.collective
    if told is not None and told not in names.PARAM:
        return f"{told:.40} has no counterpart here"
    if (dtype or state.dtype or DEFAULT_DTYPE) not in names.DTYPES:
        return f"dtype {dtype or state.dtype:.40}, which CollBench does not have"
    if state.backend is not None and state.backend not in names.PARAM_BACKENDS:
        return f"backend {state.backend:.40}, which CollBench does not have"
    if state.group is not None and state.ranks is not None and state.group != state.ranks:
        return f"groups of {state.group} of {state.ranks} ranks: how they are divided is not told"
    return None


def _case(op: str, dtype: str | None, ranks: int, state: _State, reading: Reading) -> Case:
    """The case of a row, without its size."""
    if dtype is None:
        reading.lacks(f"the dtype is not in the file: PARAM's default, {DEFAULT_DTYPE}, is assumed")
    if state.backend is None:
        reading.lacks("the backend is not in the file: nccl, PARAM's default, is assumed")
    if state.blocking is None:
        reading.lacks(
            "whether calls were waited for one by one (--z) is not in the file: PARAM's default, yes, is assumed"
        )
    if state.iterations is None:
        reading.lacks("how many calls a time is the mean of")
    pipelined = state.blocking is False
    return Case(
        op,
        names.PARAM_BACKENDS[state.backend or "nccl"],
        ranks,
        names.DTYPES[dtype or DEFAULT_DTYPE],
        0,
        buffers="hot",
        metric="pipelined" if pipelined else "isolated",
        depth=(state.iterations or 1) if pipelined else 1,
    )


def _statistic(state: _State) -> str:
    calls = f"{state.iterations} calls" if state.iterations else "all calls"
    manner = " back to back" if state.blocking is False else ", each waited for"
    return f"median over ranks of each rank's mean of {calls}{manner}"


def _check_rate(case: Case, named: dict[str, str], time_s: Printed, reading: Reading) -> None:
    """Note a wrong bus bandwidth. Old versions print that of rank 0, between the fastest and the slowest rank's."""
    rate = printed(named.get("busbw(gb/s)", ""))
    fastest, slowest = printed(named.get("min", "")), printed(named.get("max", ""))
    if rate is None or case.world_size == 1 or OPERATIONS[case.op].bus_factor is None:
        return
    low = fastest.low * US if fastest else time_s.low
    high = slowest.high * US if slowest else time_s.high
    between = Printed((low + high) / 2, (high - low) / 2)
    if not agrees(case.size_bytes * bus_factor(case.op, case.world_size), between, rate):
        reading.note(f"{case.op}: bus bandwidths of the file do not follow from size, time and {case.world_size} ranks")
