"""Each row of a damaged log is read correctly, counted as not read, or the file is refused: no row is lost.

Logs of one to three executions, with different ranks and operations, are changed at random: titles dropped, messages
between and inside rows, rows cut, lines twice, labels of launchers, envelopes of log collectors, the end missing.
The rows that are complete at the end are known, because each line carries its content. The published outputs of
nccl-tests are tested if they are available.
"""

import json
import random
import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import foreign
from bench.model.errors import ForeignError
from bench.packages.interop.importers import nccl_tests, osu
from bench.packages.interop.importers.readings import Options, Source

SEEDS = 1000
PUBLISHED = Path(__file__).resolve().parents[2] / "shared" / "reference" / "nccl-tests"
NCCL_ROW = re.compile(r"\s*(\d+)\s+\d+\s+[a-z]\w*\s+[a-z]+\s+-?\d+((?:\s+\S+){4,8})")
OSU_ROW = re.compile(r"(\d+)\s+(\d+\.\d+)((?:\s+\S+)*)")


@dataclass(frozen=True)
class Written:
    """A line of a log, and its content if the line is a row: operation, ranks, bytes, and the times in µs."""

    text: str
    row: tuple[str, int, int, tuple[float, ...]] | None = None
    whole: bool = True


def nccl_block(draw: random.Random) -> list[Written]:
    test, ranks = draw.choice(["all_reduce", "all_gather", "reduce_scatter", "alltoall"]), draw.choice([2, 4, 8])
    text = foreign.nccl(test, ranks, named=draw.random() < 0.7)
    if draw.random() < 0.5:
        text = f"$ mpirun -np {ranks} ./build/{test}_perf -b 1K -e 128M -f 2\n{text}"
    lines = []
    for line in text.split("\n"):
        matched = NCCL_ROW.fullmatch(line)
        times = tuple(float(matched[2].split()[at]) for at in (0, 4)) if matched else ()
        op = {"alltoall": "all_to_all"}.get(test, test)
        lines.append(Written(line, (op, ranks, int(matched[1]), times) if matched else None))
    return lines


def osu_block(draw: random.Random) -> list[Written]:
    title, op, scaled = draw.choice(
        [("Allreduce", "all_reduce", 1), ("Allgather", "all_gather", 0), ("Broadcast", "broadcast", 1)]
    )
    ranks = draw.choice([2, 4, 8])
    text = f"$ srun -n {ranks} ./osu_{title.lower()}\n" + foreign.osu(f"MPI {title}", full=draw.random() < 0.5)
    lines = []
    for line in text.split("\n"):
        matched = OSU_ROW.fullmatch(line)
        row = (op, ranks, int(matched[1]) * (1 if scaled else ranks), (float(matched[2]),)) if matched else None
        lines.append(Written(line, row))
    return lines


HEADS = r"algbw|# Size|Test v|starting|Rank"


def mutated(lines: list[Written], draw: random.Random, heads: str = HEADS) -> list[Written]:
    """Return the lines after a random mutation of their content. heads: a pattern of lines that may be removed."""
    match draw.randrange(7):
        case 0:  # a title or header is filtered out
            places = [at for at, line in enumerate(lines) if re.search(heads, line.text)]
            drop = draw.choice(places) if places else 0
            return [line for at, line in enumerate(lines) if at != drop]
        case 1:  # messages between lines
            message = Written("node-1:123:456 [0] NCCL INFO Channel 00/02 : 0 1 2 3")
            return [part for line in lines for part in ((line, message) if draw.random() < 0.3 else (line,))]
        case 2:  # a row is cut
            rows = [at for at, line in enumerate(lines) if line.row]
            if not rows:
                return lines
            at = draw.choice(rows)
            keep = draw.randrange(len(lines[at].text))
            return [*lines[:at], replace(lines[at], text=lines[at].text[:keep], whole=False), *lines[at + 1 :]]
        case 3:  # a line comes twice
            at = draw.randrange(len(lines))
            return [*lines[: at + 1], *lines[at:]]
        case 4:  # the end is missing
            return lines[: draw.randrange(len(lines) // 2, len(lines)) + 1]
        case _:  # a comment behind a row
            return [
                replace(line, text=f"{line.text}   <- look") if line.row and draw.random() < 0.2 else line
                for line in lines
            ]


LABELS = ("[1,0]<stdout>:", "0: ", "[0] ", "2026-01-02T03:04:05.678Z ", "node01: ", "[2026-01-02 03:04:05] ")
LOGGERS = ("INFO:runner.py:{n}: ", "2026-01-02 03:04:05,{n} INFO job {n} - ", "pod/bench-{n} | ")


def wrapped(lines: list[str], draw: random.Random) -> str:
    """Return the lines as launchers and log collectors keep lines."""
    match draw.randrange(6):
        case 0:
            label = draw.choice(LABELS)
            return "\n".join(label + line for line in lines)
        case 1:
            logger = draw.choice(LOGGERS)
            return "\n".join(logger.format(n=100 + at % 900) + line for at, line in enumerate(lines))
        case 2:
            objects = [{"log": f"{line}\n", "stream": "stdout", "time": "2026-01-02T03:04:05Z"} for line in lines]
            return "\n".join(map(json.dumps, objects))
        case 3:
            return "\n".join(
                json.dumps({"level": "info", "ts": 1.5 + at, "msg": line}) for at, line in enumerate(lines)
            )
        case 4:
            return "started\n" + json.dumps({"level": "info", "output": "\n".join(lines)}) + "\nended"
        case _:
            return "\n".join(lines)


Times = list[tuple[tuple[str, int, int], float]]


def times_in(lines: list[Written]) -> Times:
    """Return operation, ranks and bytes, and the time in µs, for each number in the lines."""
    return [(line.row[:3], time) for line in lines if line.row for time in line.row[3]]


def examined(text: str, lines: list[Written], reader, printed: Times) -> Counter:
    """Count rows of the log, and rows that were read, counted or refused. Assert that no number is wrong."""
    counts = Counter(rows=sum(1 for line in lines if line.row and line.whole))
    try:
        reading = reader(Source(Path("x.log"), "0", text), Options())
    except ForeignError:
        counts["refused"] = counts["rows"]
        return counts
    for number in reading.numbers:
        if number.aggregate is None:
            continue
        case, seconds = number.case, number.aggregate.time_s
        assert any(
            key == (case.op, case.world_size, case.size_bytes) and abs(seconds * 1e6 - time) < 1e-6 * time
            for key, time in printed
        ), f"{case.op} of {case.size_bytes} B on {case.world_size} ranks: {seconds * 1e6} µs"
    halves = max((len(line.row[3]) for line in lines if line.row), default=1)
    counts["read"] = -(-len(reading.numbers) // halves)
    counts["counted"] = sum(reading.left_out.values())
    counts["lost"] = max(0, counts["rows"] - counts["read"] - counts["counted"])
    return counts


@pytest.mark.parametrize(("block", "reader"), [(nccl_block, nccl_tests.read), (osu_block, osu.read)])
def test_no_row_is_lost_and_no_number_is_wrong(block, reader):
    total: Counter = Counter()
    for seed in range(SEEDS):
        draw = random.Random(seed)
        lines = [line for _ in range(draw.randint(1, 3)) for line in block(draw)]
        for _ in range(draw.randint(0, 3)):
            lines = mutated(lines, draw)
        text = wrapped([line.text for line in lines], draw)
        counts = examined(text, lines, reader, times_in(lines))
        assert not counts["lost"], f"seed {seed}: {counts}"
        total += counts
    assert total["read"] > 0.5 * total["rows"], total


def published() -> list[Path]:
    """Return the published outputs of nccl-tests that can be read without changes."""
    readable = []
    for path in sorted(PUBLISHED.glob("*.txt")):
        try:
            nccl_tests.read(Source(path, "0", path.read_text()), Options())
        except ForeignError:
            continue
        readable.append(path)
    return readable


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published outputs are not here")
@pytest.mark.parametrize("path", published(), ids=lambda path: path.stem)
def test_no_row_of_a_published_output_is_lost(path):
    text = path.read_text()
    numbers = nccl_tests.read(Source(path, "0", text), Options()).numbers
    printed = [
        ((n.case.op, n.case.world_size, n.case.size_bytes), n.aggregate.time_s * 1e6) for n in numbers if n.aggregate
    ]
    written = []
    for line in text.split("\n"):
        result = NCCL_ROW.match(line)
        written.append(Written(line, ("", 0, int(result[1]), (0.0, 0.0)) if result else None))
    for seed in range(SEEDS // 10):
        draw = random.Random(seed)
        lines = written
        for _ in range(draw.randint(0, 3)):
            # Without the last line of the list of ranks, nothing in a log of sendrecv shows that a line is missing.
            lines = mutated(lines, draw, HEADS.removesuffix("|Rank"))
        result = examined(wrapped([line.text for line in lines], draw), lines, nccl_tests.read, printed)
        assert not result["lost"], f"seed {seed}: {result}"
