"""Every time that nccl-tests printed is imported, in every layout and with other text between and inside the rows.

A fact that the file lacks is asked for or reported, never guessed silently; wrong results have no number.
"""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import foreign
from collbench.analyze.analysis import analyze
from collbench.model.errors import ForeignError
from collbench.model.records import Case
from collbench.packages.interop.importers import assembly, nccl_tests, readings
from collbench.packages.interop.importers.readings import Options, Source, read_source
from collbench.packages.interop.report.nccl_tests import document
from collbench.report.notices import sentences
from collbench.report.view import View
from conftest import invented_run, samples

NODE_INFO = "node-1:123:456 [0] NCCL INFO Channel 00/02 : 0 1 2 3"
ROW = re.compile(r"(\s+\d+\s+\d+\s+float\s+sum\s+-1)((?:\s+\S+){4})((?:\s+\S+){4})")
OUTPUT, UNNAMED = foreign.nccl(), foreign.nccl(named=False)
LINES = OUTPUT.split("\n")


@pytest.fixture
def read(tmp_path):
    def read(text: str | bytes, name: str = "x.txt", **options):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return nccl_tests.read(read_source(path), Options(**options))

    return read


def times_of(reading) -> dict:
    return {(n.case.size_bytes, n.case.placement): n.aggregate.time_s for n in reading.numbers}


def printed(sizes=foreign.SIZES, usual: str = "in") -> dict:
    """Return the times that the file has for these sizes; it prints three digits and more."""
    named = {"in": "in", "out": "out"} | {usual: "usual"}
    return {
        (size, named[place]): pytest.approx(foreign.time_s(size, place), rel=2e-3)
        for size in sizes
        for place in ("in", "out")
    }


# ── layouts and envelopes ────────────────────────────────────────────────────────────────────────
def each_line(change, text: str = OUTPUT) -> str:
    return "\n".join(change(line) for line in text.split("\n"))


def inside_a_row(line: str) -> str:
    """Put messages behind the preamble and between the halves of a row, as NCCL writes to the same stream."""
    match = ROW.fullmatch(line)
    return f"{match[1]}{NODE_INFO}\n{match[2]}{NODE_INFO}\n{NODE_INFO}\n{match[3]}" if match else line


def behind_a_row(words: str, title: str = ""):
    return lambda line: line + (words if ROW.match(line) else title if "algbw" in line else "")


def objects(texts, key: str = "log", **more) -> str:
    """Return an object in JSON per text."""
    return "\n".join(json.dumps({key: text, **more}) for text in texts)


WRITTEN = {
    "2.10 and later": OUTPUT,
    "no leading #": OUTPUT.replace("#wrong", "@").replace("#", "").replace("@", "#wrong"),
    "no header": "\n".join(line for line in LINES if line not in foreign.HEADER),
    "Windows": OUTPUT.replace("\n", "\r\n"),
    "UTF-8 with a mark": b"\xef\xbb\xbf" + OUTPUT.encode(),
    "colours": OUTPUT.replace("float", "\x1b[32mfloat\x1b[0m"),
    "Open MPI tags": each_line(lambda line: f"[1,0]<stdout>:{line}"),
    "a quote": each_line(lambda line: f"> {line}"),
    "messages between rows": each_line(lambda line: f"{line}\n{NODE_INFO}"),
    "messages inside rows": each_line(inside_a_row),
    "time stamp behind": each_line(behind_a_row("  2026-01-02 03:04:05", "           timestamp")),
    "JSON behind": each_line(behind_a_row('\t{"pod": "x"}')),
    "rccl's columns": each_line(behind_a_row("    RING    SIMPLE          16", "     algo     proto   nchannels")),
    "per-iteration columns": ROW.sub(r"\1\2  1.0  2.0  3.0  4.0\3  1.0  2.0  3.0  4.0", OUTPUT).replace(
        "#wrong", "#wrong   i_min   i_max   i_p99   i_cv%"
    ),
    "a line feed between rows lost": re.sub(r"(\n +1048576 .*)\n( +134217728 )", r"\1\2", OUTPUT),
    "a table in one line": OUTPUT.replace("\n", "#012"),
    "one object a line": objects((f"{line}\n" for line in LINES), stream="stdout"),
    "lines that were cut": objects(part for line in LINES for part in (line[:30], f"{line[30:]}\n")),
    "a table in one object": "a\n" + objects([OUTPUT], "output", level="info"),
    "JSON in JSON": objects([objects([OUTPUT], "msg")]) + "\n",
    "behind a time stamp": each_line(lambda line: f"2026-01-02 03:04:05 {objects([line], 'msg')}"),
    "no JSON": "stdout: b'" + "\\n".join(LINES) + "'",
    "an array": json.dumps([{"_source": {"log": line}} for line in LINES]),
    "one message with a line feed": objects(["starting\n", *LINES], "message"),
}


@pytest.mark.parametrize("layout", WRITTEN)
def test_all_layouts_give_the_printed_times(read, layout):
    reading = read(WRITTEN[layout])
    assert times_of(reading) == printed() and {n.case.op for n in reading.numbers} == {"all_reduce"}
    assert reading.rows == len(foreign.SIZES) and not +reading.left_out and not reading.unread


# ── how a time was measured, and whether it is right ─────────────────────────────────────────────
@pytest.mark.parametrize(("printed", "count"), [("3", "3"), ("1.04858e+06", "1048580")])
def test_wrong_elements_leave_no_number(read, printed, count):
    numbers = read(foreign.nccl(wrong=printed)).numbers
    wrong = [n for n in numbers if n.case.placement == "out"]
    assert all(n.aggregate is None and n.failure.kind == "wrong" and n.failure.rank is None for n in wrong)
    assert count in wrong[0].failure.text
    assert all(n.aggregate is not None for n in numbers if n.case.placement == "usual")
    # What is not available is neither right nor wrong.
    assert {n.verified for n in read(foreign.nccl(wrong="N/A")).numbers} == {None, True}


@pytest.mark.parametrize(
    ("wrong", "count", "outcome"), [("0", "0", "0 OK"), ("N/A", "N/A", "N/A (the tool does not report it)")]
)
def test_errors_are_reported_as_the_tool_counted_them(warm, wrong, count, outcome):
    text = each_line(
        lambda line: line.removesuffix("      0") + f"{wrong:>7}" if ROW.fullmatch(line) else line,
        foreign.nccl(wrong=wrong),
    )
    assert warm("import", "nccl-tests", warm.config(text, "all_reduce.log")).returncode == 0
    report = warm("report", "--format", "nccl-tests").stdout
    rows = [line.split() for line in report.splitlines() if line[:1] == " " and line.split()[0].isdecimal()]
    assert rows and all(row[8] == row[12] == count for row in rows) and f"# Out of bounds values : {outcome}" in report


# ── facts that the file lacks, and several executions ────────────────────────────────────────────
def without_ranks(text: str, rank: str = "") -> str:
    """Return the text without its list of ranks, or without one rank in it."""
    return re.sub(rf"#  Rank  {rank}.*\n", "", text)


def rows_only(test: str) -> str:
    return "\n".join(foreign.nccl_rows(test, 4))


# The log lacks the line of the last rank, but bandwidths, settings or the command line show one more rank.
SHORT = without_ranks(foreign.nccl("all_gather", 4, named=False), "3")
ONE_GPU = SHORT.replace("nGpus 4", "nGpus 1")
ABORTED = foreign.nccl("all_gather", ranks=8).split(foreign.HEADER[0])[0] + "node-1: Test CUDA failure\n"
CRASHED = "\n".join([*foreign.preamble("all_gather", 2, iters=100)[:1], "# Blocking Enabled: wait and barrier"])
HEAD, SETTINGS, *REST = UNNAMED.split("\n", 2)
READ = {
    "ranks as asked for": (without_ranks(foreign.nccl("broadcast")), {"world_size": 4}, {("broadcast", 4)}),
    "ranks by bandwidths": (without_ranks(foreign.nccl(ranks=8)), {}, {("all_reduce", 8)}),
    "ranks by settings": (SHORT, {"name": "all_gather.log"}, {("all_gather", 4)}),
    "one GPU, ranks as asked for": (ONE_GPU, {"name": "all_gather.log", "world_size": 4}, {("all_gather", 4)}),
    "the operation as asked for": (UNNAMED, {"operation": "all_reduce"}, {("all_reduce", 4)}),
    "the operation by the file": (UNNAMED, {"name": "job7-allreduce_4gpu.log"}, {("all_reduce", 4)}),
    "by a command": (f"$ mpirun -np 4 ./build/all_reduce_perf -b 8\n{UNNAMED}", {}, {("all_reduce", 4)}),
    "several tests": (
        OUTPUT + "\n" + foreign.nccl("all_gather", ranks=2) + "\n" + foreign.nccl("alltoall"), {},
        {("all_reduce", 4), ("all_gather", 2), ("all_to_all", 4)},
    ),
    "an aborted try before": (ABORTED + OUTPUT, {}, {("all_reduce", 4)}),
    "a crash before": (
        f"$ ./all_gather_perf -g 2 -n 100\n{CRASHED}\n{foreign.nccl('all_reduce', 2, named=False)}",
        {"operation": "all_reduce"}, {("all_reduce", 2)},
    ),
    "a command ends the output above it": (
        "\n".join(f"+ mpirun -np 4 ./build/{op}_perf -g 1\n{rows_only(op)}" for op in ("reduce_scatter", "all_gather")),
        {}, {("reduce_scatter", 4), ("all_gather", 4)},
    ),
    "the version of rccl-tests below the settings": (
        f"$ mpirun -np 1 ./all_reduce_perf -g 4\n{HEAD}\n# rccl-tests: Version abc\n" + "\n".join([SETTINGS, *REST]),
        {}, {("all_reduce", 4)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("title", READ)
def test_the_operation_and_the_ranks_of_each_table_are_known(read, title):
    text, options, found = READ[title]
    reading = read(text, **options)
    assert {(n.case.op, n.case.world_size) for n in reading.numbers} == found
    if "command" not in title:  # such a log has no settings
        assert {(n.case.metric, n.case.depth) for n in reading.numbers} == {("pipelined", 20)}
    assert title != "ranks by bandwidths" or nccl_tests.RANKS_BY_RATES() in reading.unknown
    assert (nccl_tests.OPERATION_BY_NAME() in reading.unknown) == ("name" in options)
    assert nccl_tests.COPIES not in {note.kind for note in reading.notes}


FIRST, SECOND = (f"# nccl-tests version 2.18.0\n# Collective test starting: {test}_perf\n" for test in ("a", "b"))
RUN = invented_run([samples(Case("all_reduce", "gloo", 2, "float32", 4096), 1, np.full((4, 2), 10**6))])
OURS = document(View(RUN, analyze(RUN)))
REFUSED = [
    # Our own times are those of the slowest rank, perhaps on gloo, and their run already exists.
    (OURS, {}, "CollBench wrote it"),
    ("# From the flags of nccl-tests: -b 4K\n" + OURS, {}, "CollBench wrote it"),  # as `perf` prints it
    # Older versions wrote milliseconds, or the largest deviation instead of the number of wrong elements.
    ("#      bytes             N    type      op" + 2 * "     time  algbw  busbw      res", {}, "2.10 or newer is"),
    (foreign.nccl_json(version=1), {"name": "all_reduce.log"}, "nccl-tests 2.10 or newer is read"),
    (without_ranks(foreign.nccl("broadcast")), {}, "--world-size N"),
    (OUTPUT, {"world_size": 8}, "states 4 ranks"),
    (OUTPUT, {"operation": "broadcast"}, "measured all_reduce"),
    (UNNAMED, {}, "--operation"),
    (UNNAMED, {"name": "allreduce-and-alltoall.log"}, "--operation"),
    (FIRST + SECOND.split("\n", 1)[1] + OUTPUT, {}, "outputs of two executions are mixed"),
    (ABORTED + "common.cu:1304 'busy or unavailable'\n", {}, "all_gather_perf ended before its first row"),
    ("hello\n", {}, "no table of results of nccl-tests"),
    (ONE_GPU, {"name": "all_gather.log"}, "lists 3 ranks, but busbw is for 4"),
    (
        "$ mpirun -np 4 ./broadcast_perf -b 1K\n"
        + without_ranks(foreign.nccl("broadcast", 4, named=False).replace("nGpus 4", "nGpus 1"), "3"),
        {}, "number of ranks",
    ),
    # Words that are not a command name no test.
    *(
        (f"{line}\n{foreign.nccl('all_gather', named=False)}", {}, "the measured collective")
        for line in (
            "Linking /src/build/sendrecv_perf", "=== alltoall_perf done ===", "alltoall_perf",
            "-rwx 1 a b alltoall_perf", '{"image": "x/alltoall_perf", "note": "pulled"}',
            'time=1 cmd="./alltoall_perf" msg="x"',
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "options", "message"), REFUSED)
def test_what_the_file_does_not_state_is_refused_or_asked_for(read, text, options, message):
    with pytest.raises(ForeignError, match=message.replace(".", r"\.")):
        read(text, **options)


# ── rows that are left out ───────────────────────────────────────────────────────────────────────
def grouped(*colours: int) -> str:
    """Return the output of ranks in groups of these colours."""
    text = OUTPUT
    for rank, colour in enumerate(colours):
        text = text.replace(f"Rank  {rank} Group  0", f"Rank  {rank} Group  {colour}")
    return text


@pytest.mark.parametrize(
    ("colours", "division"), [((0, 1, 0, 1), "strided:2"), ((0, 0, 1, 1), "contiguous:2"), ((0, 0, 0, 0), "world")]
)
def test_groups_get_the_names_that_they_have_here(read, colours, division):
    assert {str(n.case.groups) for n in read(grouped(*colours)).numbers} == {division}


def uneven(spread: float = 1.0, counts=(1000, 4096)) -> str:
    """Return output of alltoallv_perf on 4 ranks. counts: elements per peer if shares were even; 0 means a matrix."""
    rows = []
    for count in counts:
        distances = [int((1 - spread) * count * 4 + spread * d * count * 16 / 6) // 16 * 16 for d in range(4)]
        size = sum(distances) or 65536
        lead = f"{size:12d}  {count:12d}  {'float':>8}  {'none':>6}  {-1:6d}"
        rows.append(f"{lead}{foreign.half('alltoall', size, 4, 'out')}{foreign.half('alltoall', size, 4, 'in', 'N/A')}")
    text = foreign.nccl("alltoall").replace("alltoall_perf", "alltoallv_perf")
    return text.replace(rows_only("alltoall"), "\n".join(rows))


def test_uneven_shares_are_an_uneven_all_to_all(read):
    reading = read(uneven())
    assert {(number.case.op, str(number.case.splits)) for number in reading.numbers} == {("all_to_all", "distance:1")}
    assert nccl_tests.SPREAD_ASSUMED in {gap.kind for gap in reading.unknown}
    assert {note.kind for note in reading.notes} == {nccl_tests.BUSIEST_RANK}


OTHER_DTYPE = "\n".join([foreign.HEADER[2], *foreign.nccl_rows(dtype="uint32"), *foreign.nccl_rows(sizes=(0, 0))])
JOINED = OUTPUT.replace("# Collective test concluded", "#").replace("# Out of bounds", "#")


@pytest.mark.parametrize(
    ("text", "numbers", "reasons"),
    [
        (
            OUTPUT.replace(foreign.HEADER[2], OTHER_DTYPE),
            8,
            {readings.OTHER_DTYPE(dtype="uint32"): 4, readings.SIZE_0(): 2},
        ),
        # The reduce op and the number of elements distinguish the rows of another test.
        (JOINED + rows_only("all_gather"), 8, {nccl_tests.CONTRADICTION(): 4}),
        (OUTPUT.replace(" time ", " cputime "), 0, {nccl_tests.CPU_TIME(): 4}),
        (grouped(0, 1, 1, 0), 0, {nccl_tests.UNNAMED_DIVISION(): 4}),
        (uneven(0.0), 0, {nccl_tests.NOT_BY_SPREAD(spread=1.0): 2}),
        (uneven(counts=(0,)), 0, {nccl_tests.MATRIX_OF_BYTES(): 1}),
        (uneven().replace("nccl-tests version", "rccl-tests version"), 0, {nccl_tests.OTHER_DIVISION(): 2}),
        *(
            (OUTPUT.replace("all_reduce_perf", f"{test}_perf"), 0, {readings.NO_COUNTERPART(test=f"{test}_perf"): 4})
            for test in ("hypercube", "all_reduce_bias")
        ),
    ],
)
def test_rows_that_cannot_be_kept_are_counted_with_their_reason(read, text, numbers, reasons):
    reading = read(text)
    assert len(reading.numbers) == numbers and {n.case.op for n in reading.numbers} <= {"all_reduce"}
    assert +reading.left_out == reasons
    if not numbers:
        with pytest.raises(ForeignError, match="nothing to import") as caught:
            assembly.assemble("nccl-tests", "x", [(Source(Path("x.txt"), "0", ""), reading)])
        ((reason, count),) = reasons.items()
        (said,) = sentences(caught.value.reasons)
        assert said.startswith(f"left out: {count} row") and (
            reason.kind is not readings.NO_COUNTERPART or said.endswith("_perf has no counterpart here")
        )


def test_rows_that_could_not_be_read_are_shown_with_their_lines(warm):
    cut = [line[:60] if ROW.match(line) and "65536" in line else line for line in LINES]
    done = warm("import", "nccl-tests", warm.config("\n".join(cut), "all_reduce.log"))
    number = next(at for at, line in enumerate(cut, 1) if line.lstrip().startswith("65536"))
    assert done.returncode == 0 and f"all_reduce.log:{number}: " in done.stderr


@pytest.mark.parametrize("blank", [" ", "\t"])
def test_a_half_whose_blanks_are_lost_has_no_placement(read, blank):
    """Rows of an in-place half only begin with blanks in place of the other half; a web page collapses them."""
    text = OUTPUT
    for row in foreign.nccl_rows():
        words = row.split()
        text = text.replace(row, blank.join(words[:5] + words[9:]))
    try:
        assert not read(text).numbers
    except ForeignError as error:
        assert "no table" in str(error) or "row" in str(error)


# ── torn and wrapped rows, and rows between bars ─────────────────────────────────────────────────
def test_a_row_that_is_torn_anywhere_is_right_or_counted(read):
    place = next(number for number, line in enumerate(LINES) if line.lstrip().startswith("65536"))
    for at in range(2, 112):
        row = [LINES[place][:at] + "n1:1:1 [0] NCCL INFO x", LINES[place][at:]]
        reading = read("\n".join([*LINES[:place], *row, *LINES[place + 1 :]]))
        assert times_of(reading).items() <= printed().items(), at
        assert all(number.failure is None and number.case.root == 0 for number in reading.numbers), at
        assert len(reading.numbers) == 8 or sum(reading.left_out.values()), at


def test_a_table_that_a_terminal_wrapped_gives_no_time_in_the_other_placement(read):
    text = foreign.nccl("all_gather")
    for width in range(40, 120):
        pieces = [line[at : at + width] for line in text.split("\n") for at in range(0, max(1, len(line)), width)]
        try:
            times = times_of(read("\n".join(pieces)))
        except ForeignError as error:
            assert "a narrow terminal wrapped the lines" in str(error)
        else:
            assert times and width > 85 and times.items() <= printed(usual="out").items(), width


def markdown(columns: int) -> str:
    """Return a printed table, and a table in Markdown with the first columns of other rows."""
    names = "size (B),count,type,redop,root" + 2 * ",time (us),algbw (GB/s),busbw (GB/s),#wrong"
    rows = [names.split(","), ["---:"] * 13, *map(str.split, foreign.nccl_rows(sizes=(2048, 4096)))]
    return OUTPUT + "\n".join(f"| {' | '.join(row[:columns])} |" for row in rows)


def test_rows_of_a_table_in_markdown_are_read_or_counted(read):
    assert times_of(read(markdown(13), operation="all_reduce")) == printed((*foreign.SIZES, 2048, 4096))
    half = read("in-place or out-of-place?\n" + markdown(9))  # nothing states which half it is
    assert len(half.numbers) == 8 and half.left_out[readings.UNREADABLE_ROWS()] == len(half.unread) == 2
    named = read(markdown(9).replace("time (us)", "out-of-place time (us)"), operation="all_reduce")
    assert {n.case.placement for n in named.numbers if n.case.size_bytes == 2048} == {"out"}
