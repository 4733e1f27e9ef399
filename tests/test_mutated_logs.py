"""Each row of a damaged log is read correctly, counted as not read, or the file is refused: no row is lost.

Logs of one to three executions, with different ranks and operations, are changed at random: titles dropped, messages
between and inside rows, rows cut, lines twice, labels of launchers, envelopes of log collectors, the end missing.
The rows that are complete at the end are known, because each line carries its content. The published outputs of
nccl-tests are tested if they are available. The same rows on narrow terminals, on pages in Markdown and behind prefixes
keep their placement, and tables under other commands, variables or headings are no launches of one case.
"""

import json
import random
import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import foreign
from collbench.model.errors import ForeignError
from collbench.packages.interop.importers import assembly, nccl_tests, osu
from collbench.packages.interop.importers.assembly import OTHER_SETTINGS
from collbench.packages.interop.importers.readings import Options, Source

SEEDS = 200
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
PREFIXES = (
    "[1,0]<stdout>:", "0: ", "pod/bench-0 ", "2026-01-02T03:04:05.678901234Z stdout F ", "bench-7f9c | ", "  12\t",
)  # fmt: skip


def collected(lines: list[str], draw: random.Random) -> str:
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
            objects = [{"level": "info", "ts": 1.5 + at, "msg": line} for at, line in enumerate(lines)]
            return "\n".join(map(json.dumps, objects))
        case 4:
            return "started\n" + json.dumps({"level": "info", "output": "\n".join(lines)}) + "\nended"
        case _:
            return "\n".join(lines)


# ── a log ────────────────────────────────────────────────────────────────────────────────────────


Row = tuple[str, int, int, str]
NUMBER = re.compile(r"(?<!\S)\d+(?:\.\d+)?(?!\S)")
# Operation → its usual placement in the output of nccl-tests; all others: out of place, as in all of OSU's output.
USUAL = {"all_reduce": "in"}


def numbers_in(line: Written) -> list[tuple[Row, float]]:
    """Return operation, ranks, bytes and placement, and the time in µs, of each number in a line."""
    places = ("out", "in") if line.row and len(line.row[3]) == 2 else ("out",)
    return [((*line.row[:3], place), us) for place, us in zip(places, line.row[3], strict=True)] if line.row else []


def wrapped_at(lines: list[str], width: int, trimmed: bool) -> str:
    """Return the lines as a terminal of this width shows them; trimmed: without blanks at the ends."""
    pieces = [line[at : at + width] for line in lines for at in range(0, max(1, len(line)), width)]
    return "\n".join(piece.rstrip() if trimmed else piece for piece in pieces)


def on_a_page(lines: list[str], kind: str) -> str:
    """Return the lines in a Markdown document."""
    if kind == "quote":
        return "\n".join(["They wrote:", "", *(f"> {line}" for line in lines)])
    if kind == "fence":
        return "\n".join(["## Results", "", "```text", *lines, "```", "", "That is slow."])
    table = []
    for line in lines:
        cells = line.replace("# ", " ").split()
        row = NCCL_ROW.fullmatch(line) or OSU_ROW.fullmatch(line)
        columns = "busbw" in line or "# Size" in line
        cells = re.split(r"\s{2,}", line.strip("# ")) if columns and "Size" in line else cells
        table.append(f"| {' | '.join(cells)} |" if row or columns else line)
        table += [f"|{'---:|' * len(cells)}"] if columns else []
    return "\n".join(table)


def changed(lines: list[str], draw: random.Random) -> tuple[str, str, list[str]]:
    """Return the kind of a change, the log after it, and what is left of each line."""
    prefix = draw.choice(PREFIXES)
    match draw.randrange(10):
        case 0:
            return "wrapped", wrapped_at(lines, draw.randrange(40, 131), trimmed=False), lines
        case 1:
            return "wrapped, trimmed", wrapped_at(lines, draw.randrange(40, 131), trimmed=True), lines
        case 2:
            kind = draw.choice(["quote", "fence", "table"])
            return kind, on_a_page(lines, kind), lines
        case 3:
            kind, rest = "prefix", [prefix + line for line in lines]
        case 4:
            width = draw.randrange(60, 131)
            kind, rest = "prefix, right columns cut", [(prefix + line)[:width] for line in lines]
        case 5:
            left = draw.randrange(1, 40)
            kind, rest = "left columns cut", ["| " + line[left:] for line in lines]
        case _:
            return "collected", collected(lines, draw), lines
    return kind, "\n".join(rest), rest


def times_left(line: str, halves: int) -> list[float]:
    """Return the numbers that may be times; the last of several columns is cut."""
    numbers = [float(word) for word in NUMBER.findall(line)]
    return numbers[:-1] if halves == 2 else numbers


def outcomes(text: str, lines: list[Written], left: list[str], reader) -> Counter:
    """Count rows that were read right, counted as unreadable, refused and lost. Assert that no number is wrong.

    left: what is left of each line; a row of which no time is left cannot be read.
    """
    rows = [
        [number for number in numbers_in(line) if number[1] in times_left(rest, len(line.row[3]))]
        for line, rest in zip(lines, left, strict=True)
        if line.row and line.whole
    ]
    try:
        reading = reader(Source(Path("x.log"), "0", text), Options())
    except ForeignError:
        return Counter(refused=len(rows))
    printed = {number for line in lines for number in numbers_in(line)}
    read = set()
    for number in reading.numbers:
        case = number.case
        place = USUAL.get(case.op, "out") if case.placement == "usual" else case.placement
        key, us = (case.op, case.world_size, case.size_bytes, place), number.aggregate.time_s * 1e6
        found = [entry for entry in printed if entry[0] == key and abs(entry[1] - us) < 1e-6 * us]
        assert found, f"{key}: {us} µs"
        read.update(found)
    whole = sum(1 for row in rows if row and all(number in read for number in row))
    counted = min(sum(reading.left_out.values()), len(rows) - whole)
    return Counter(read=whole, counted=counted, lost=len(rows) - whole - counted)


@pytest.mark.parametrize(("block", "reader"), [(nccl_block, nccl_tests.read), (osu_block, osu.read)])
def test_no_row_is_lost_and_no_number_is_wrong_or_in_the_other_placement(block, reader):
    total: dict[str, Counter] = {}
    for seed in range(SEEDS):
        draw = random.Random(seed)
        lines = [line for _ in range(draw.randint(1, 3)) for line in block(draw)]
        for _ in range(draw.choice((0, 0, 1, 2, 3))):
            lines = mutated(lines, draw)
        kind, text, left = changed([line.text for line in lines], draw)
        found = outcomes(text, lines, left, reader)
        assert not found["lost"], f"seed {seed}, {kind}: {found}"
        total.setdefault(kind, Counter()).update(found)
    assert all(total[kind]["read"] > total[kind]["refused"] for kind in ("prefix", "fence", "quote", "table")), total
    assert total["collected"]["read"] > total["collected"]["counted"] + total["collected"]["refused"], total


# Text before two tables that were measured in different ways. {}: the command.
DIFFERENT = (
    ("export HIP_VISIBLE_DEVICES=0,1\n{}", "export HIP_VISIBLE_DEVICES=0,2\n{}"),
    ("{} -x UCX_TLS=rc", "{} -x UCX_TLS=tcp"),
    ("+ NCCL_ALGO=Ring\n+ {}", "+ NCCL_ALGO=Tree\n+ {}"),
    ("NCCL_P2P_DISABLE=0 {}", "NCCL_P2P_DISABLE=1 {}"),
    ("A=1 {}", "B=1 {}"),
    ("{}", "export NCCL_P2P_DISABLE=1\n{}"),
    ("export A=1\n{}", "unset A\n{}"),
    ("setenv A 1\n{}", "setenv A 2\n{}"),
    ("## With SHARP\n\n{}", "## Without SHARP\n\n{}"),
    ("CASE1: on\n{}", "CASE2: off\n{}"),
    ("{}", "--- now with 4 channels ---\n{}"),
    ("pair 0,1", "pair 0,2"),
    ("Ring:", "Tree:"),
    ("NCCL version 2.19.3\n{}", "NCCL version 2.21.5\n{}"),
    ("{}\nNCCL version 2.19.3", "{}\nNCCL version 2.21.5"),
    ("{}\nn1:1:1 [0] NCCL INFO NCCL_ALGO set by environment to Ring.", "{}\nn1:1:1 [0] NCCL INFO comm ready"),
    ("echo {} | ssh node1\n{}", "echo {} | ssh node2\n{}"),
    ("mpirun \\\n -x A=1 \\\n{}", "mpirun \\\n -x A=2 \\\n{}"),
    ("/opt/ompi-2026-01-10/{}", "/opt/ompi-2026-02-10/{}"),
    ("export LD_LIBRARY_PATH=/opt/slurm-22\n{}", "export LD_LIBRARY_PATH=/opt/slurm-24\n{}"),
    ("=== NCCL_ALGO=Ring ===\n{}", "=== NCCL_ALGO=Tree ===\n{}"),
    ("{} 2>&1 > out.log; export NCCL_ALGO=Ring", "{} 2>&1 > out.log; export NCCL_ALGO=Tree"),
    ("{}\nn1:1:1 [0] NCCL INFO Using network IB", "{}\nn1:1:1 [0] NCCL INFO Using network Socket"),
)
# Text before the tables of a loop, which are launches. {n}: the number of the launch.
LOOPS = (
    "",
    "$ {}",
    "+ {}",
    "=== run {n} of 9 ===\n{}",
    "Sun Nov 29 00:3{n}:10 UTC 2026\n{}",
    "2026-11-29T00:3{n}:10 start\n{}",
    "Submitted batch job 88{n}\n{}",
    "iteration {n}:\n{} > run_{n}.log",
    "pid 12{n}\n{} 2>&1 | tee log.{n}",
    "real\t0m{n}.26s\nuser\t0m0.1{n}s\n{}",
    "export A=1\n{}",
    "{test}=1 {}",
    "## {test}\n{}",
    "export A=1\n$ {}\nunset B",
    "{}\nn1:{n}:1 [0] NCCL INFO comm 0x7f{n} ready",
    "| 3{n}C  97W / 700W |  4{n}MiB / 81559MiB |\n{}",
    "[node1:2000{n}] {n} more processes have sent help message\n{}",
    "{} --job-id {n}\n+ tee -a log.{n}",
)


def executions(draw: random.Random, tool: str) -> tuple[str, dict[str, list[int]]]:
    """Return a log in which tests ran several times, and for each operation the settings of its tables in order."""
    tests = draw.choice([["all_reduce"], ["all_gather"], ["all_reduce", "all_gather"]])
    settings = [draw.randrange(2) for _ in range(draw.randint(2, 4))] if draw.random() < 0.7 else [0] * 3
    pair = draw.choice(DIFFERENT)
    settings = sorted(settings) if pair[0] == "{}" else settings  # what the other adds stays in effect
    pair = pair if any(settings) else (draw.choice(LOOPS),) * 2
    # A heading or variable may be written once for several tables, before their commands.
    seldom = draw.random() < 0.5 and all(
        text.endswith("\n{}") and text.count("{}") == 1 and "\\" not in text for text in pair
    )
    parts, last = ["Welcome to node1", "module load mpi"] * draw.randrange(2), None
    for number, setting in enumerate(settings, 1):
        for test in tests:
            name = test if tool == "nccl" else test.replace("_", "")
            command = f"mpirun -np 4 ./{test}_perf -b 1K" if tool == "nccl" else f"mpirun -np 4 ./osu_{name}"
            table = (
                foreign.nccl(test).replace("Pid  ", f"Pid {number}") if tool == "nccl" else foreign.osu(f"MPI {name}")
            )
            text = "{}" if seldom and setting == last else pair[setting]
            parts += [text.replace("{n}", str(number)).replace("{test}", test).replace("{}", command), table]
            last = setting
    return "\n".join(parts), dict.fromkeys(tests, settings)


@pytest.mark.parametrize("tool", ["nccl", "osu"])
def test_tables_are_launches_of_a_case_only_under_equal_settings(tool):
    for seed in range(SEEDS // 2):
        text, settings = executions(random.Random(seed), tool)
        source = Source(Path("x.log"), "0", text)
        reading = (nccl_tests if tool == "nccl" else osu).read(source, Options(world_size=4))
        try:
            samples = assembly.assemble(tool, "x", [(source, reading)]).samples
        except ForeignError as error:
            assert OTHER_SETTINGS in {reason.kind for reason in error.reasons}
            samples = ()
        launches = Counter(sample.case for sample in samples)
        for op, several in settings.items():
            found = {number for case, number in launches.items() if case.op == op}
            assert found == ({len(several)} if len({*several}) == 1 else set()), f"seed {seed}: {op} {several}"
