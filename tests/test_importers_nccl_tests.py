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
from collbench.packages.interop.cli.import_ import FORMATS_HELP
from collbench.packages.interop.importers import assembly, nccl_tests, readings
from collbench.packages.interop.importers.readings import Options, Source, read_source
from collbench.packages.interop.report.nccl_tests import document
from collbench.report.notices import sentences
from collbench.report.view import View
from conftest import invented_run, samples

NODE_INFO = "node-1:123:456 [0] NCCL INFO Channel 00/02 : 0 1 2 3"
ROW = re.compile(r"(\s+\d+\s+\d+\s+float\s+sum\s+-1)((?:\s+\S+){4})((?:\s+\S+){4})")


@pytest.fixture
def read(tmp_path):
    def read(text: str | bytes, name: str = "x.txt", **options):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return nccl_tests.read(read_source(path), Options(**options))

    return read


def each_line(change, text: str | None = None) -> str:
    return "\n".join(change(line) for line in (foreign.nccl() if text is None else text).split("\n"))


def inside_a_row(line: str) -> str:
    """Put messages behind the preamble and between the halves of a row, as NCCL writes to the same stream."""
    match = ROW.fullmatch(line)
    return f"{match[1]}{NODE_INFO}\n{match[2]}{NODE_INFO}\n{NODE_INFO}\n{match[3]}" if match else line


def behind_a_row(words: str, title: str):
    return lambda line: line + (words if ROW.match(line) else title if "algbw" in line else "")


LAYOUTS = {
    "2.10 and later": foreign.nccl(),
    "no leading #": foreign.nccl().replace("#wrong", "@").replace("#", "").replace("@", "#wrong"),
    "no header": "\n".join(line for line in foreign.nccl().split("\n") if line not in foreign.HEADER),
    "Windows": foreign.nccl().replace("\n", "\r\n"),
    "UTF-8 with a mark": b"\xef\xbb\xbf" + foreign.nccl().encode(),
    "colours": foreign.nccl().replace("float", "\x1b[32mfloat\x1b[0m"),
    "Open MPI tags": each_line(lambda line: f"[1,0]<stdout>:{line}"),
    "messages between rows": each_line(lambda line: f"{line}\n{NODE_INFO}"),
    "messages inside rows": each_line(inside_a_row),
    "time stamp behind": each_line(behind_a_row("  2026-01-02 03:04:05", "           timestamp")),
    "rccl's columns": each_line(behind_a_row("    RING    SIMPLE          16", "     algo     proto   nchannels")),
    "per-iteration columns": ROW.sub(r"\1\2  1.0  2.0  3.0  4.0\3  1.0  2.0  3.0  4.0", foreign.nccl()).replace(
        "#wrong", "#wrong   i_min   i_max   i_p99   i_cv%"
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_layouts_give_the_printed_times(read, layout):
    reading = read(LAYOUTS[layout])
    assert reading.rows == len(foreign.SIZES) and not +reading.left_out
    times_s = {(n.case.size_bytes, n.case.placement): n.aggregate.time_s for n in reading.numbers}
    wanted = {
        (size, placement): foreign.time_s(size, place)
        for size in foreign.SIZES
        for placement, place in (("usual", "in"), ("out", "out"))
    }
    # three digits and more are printed
    assert times_s == {key: pytest.approx(seconds, rel=2e-3) for key, seconds in wanted.items()}


def test_the_case_is_that_of_our_own_measurement(read):
    case = read(foreign.nccl()).numbers[1].case
    assert case == Case("all_reduce", "nccl", 4, "float32", 1024, metric="pipelined", depth=20)
    # the key of our own pipelined measurement, so that `compare` puts both side by side
    assert case.key == "all_reduce/nccl/n4/float32/1024/metric=pipelined/depth=20"


def test_numbers_that_collbench_wrote_are_not_imported(read):
    """Such files have times of the slowest rank, perhaps on gloo, and their run already exists."""
    run = invented_run([samples(Case("all_reduce", "gloo", 2, "float32", 4096), 1, np.full((4, 2), 10**6))])
    with pytest.raises(ForeignError, match="CollBench wrote it"):
        read(document(View(run, analyze(run))))
    with pytest.raises(ForeignError, match="CollBench wrote it"):  # as `perf` prints it
        read("# From the flags of nccl-tests: -b 4K\n" + document(View(run, analyze(run))))


@pytest.mark.parametrize(
    "text",
    [
        "#      bytes             N    type      op" + 2 * "     time  algbw  busbw      res",
        foreign.nccl_json(version=1),
    ],
)
def test_older_versions_are_refused_with_the_versions_that_are_read(read, text):
    """Older versions wrote milliseconds, or the largest deviation instead of the number of wrong elements."""
    with pytest.raises(ForeignError, match=r"nccl-tests 2\.10 or newer is read"):
        read(text, name="all_reduce.log")
    assert "nccl-tests 2.10 or newer" in FORMATS_HELP


@pytest.mark.parametrize(
    ("test", "op", "usual"),
    [
        ("all_gather", "all_gather", "out"),
        ("reduce_scatter", "reduce_scatter", "out"),
        ("alltoall", "all_to_all", "out"),
        ("broadcast", "broadcast", "in"),
    ],
)
def test_usual_placements_agree_with_our_table(read, test, op, usual):
    numbers = read(foreign.nccl(test)).numbers
    assert {n.case.op for n in numbers} == {op}
    by_placement = {n.case.placement: n.aggregate.time_s for n in numbers if n.case.size_bytes == 1024}
    other = {"in": "out", "out": "in"}[usual]
    assert by_placement == {
        "usual": pytest.approx(foreign.time_s(1024, usual), rel=2e-3),
        other: pytest.approx(foreign.time_s(1024, other), rel=2e-3),
    }


# ── how a time was measured ──────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("old", "new", "metric", "depth", "words"),
    [
        ("", "", "pipelined", 20, "mean of 20 calls back to back, averaged over ranks"),
        (" iters: 20 ", " iters: 50 ", "pipelined", 50, "mean of 50 calls back to back"),
        ("agg iters: 1", "agg iters: 4", "pipelined", 80, "20 groups of 4 calls"),
        ("graph: 0", "graph: 7", "graph", 20, "a CUDA graph that was launched 7 times"),
        (
            "# Using",
            "# Blocking Enabled: wait for completion and barrier after each collective \n# Using",
            "isolated",
            1,
            "a barrier that is part of the time",
        ),
    ],
)
def test_the_statistic_states_how_a_time_was_measured(read, old, new, metric, depth, words):
    number = read(foreign.nccl().replace(old, new) if old else foreign.nccl()).numbers[0]
    assert (number.case.metric, number.case.depth) == (metric, depth)
    assert words in number.aggregate.statistic


def test_cpu_time_is_not_taken_for_the_time_of_the_operation(read):
    reading = read(foreign.nccl().replace(" time ", " cputime "))
    assert not reading.numbers
    assert nccl_tests.CPU_TIME() in reading.left_out


# ── right and wrong ──────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(("printed", "count"), [("3", "3"), ("1.04858e+06", "1048580")])
def test_wrong_elements_leave_no_number(read, printed, count):
    numbers = read(foreign.nccl(wrong=printed)).numbers
    wrong = [n for n in numbers if n.case.placement == "out"]
    assert all(n.aggregate is None and n.failure.kind == "wrong" and n.failure.rank is None for n in wrong)
    assert count in wrong[0].failure.text
    assert all(n.aggregate is not None for n in numbers if n.case.placement == "usual")


def test_not_available_is_neither_right_nor_wrong(read):
    numbers = read(foreign.nccl(wrong="N/A")).numbers
    assert {n.verified for n in numbers} == {None, True}


# ── facts that the file lacks ────────────────────────────────────────────────────────────────────
def without_ranks(text: str) -> str:
    return re.sub(r"#  Rank.*\n", "", text)


def test_a_lost_number_of_ranks_is_computed_if_bandwidths_give_it(read):
    reading = read(without_ranks(foreign.nccl(ranks=8)))
    assert reading.numbers[0].case.world_size == 8
    assert nccl_tests.RANKS_BY_RATES() in reading.unknown


def test_a_lost_number_of_ranks_is_asked_for_otherwise(read):
    text = without_ranks(foreign.nccl("broadcast"))
    with pytest.raises(ForeignError, match="--world-size N"):
        read(text)
    assert read(text, world_size=4).numbers[0].case.world_size == 4


def test_options_do_not_overrule_the_file(read):
    with pytest.raises(ForeignError, match="states 4 ranks"):
        read(foreign.nccl(), world_size=8)
    with pytest.raises(ForeignError, match="measured all_reduce"):
        read(foreign.nccl(), operation="broadcast")


def test_a_lost_collective_is_taken_from_the_name_or_asked_for(read):
    text = foreign.nccl(named=False)
    with pytest.raises(ForeignError, match="--operation"):
        read(text)
    with pytest.raises(ForeignError, match="--operation"):
        read(text, name="allreduce-and-alltoall.log")
    assert read(text, operation="all_reduce").numbers[0].case.op == "all_reduce"
    named = read(text, name="job7-allreduce_4gpu.log")
    assert named.numbers[0].case.op == "all_reduce" and nccl_tests.OPERATION_BY_NAME() in named.unknown
    assert read(f"$ mpirun -np 4 ./build/all_reduce_perf -b 8\n{text}").numbers[0].case.op == "all_reduce"


# ── several executions ───────────────────────────────────────────────────────────────────────────
def test_a_log_of_several_tests_is_taken_apart(read):
    reading = read(foreign.nccl() + "\n" + foreign.nccl("all_gather", ranks=2) + "\n" + foreign.nccl("alltoall"))
    measured = {(n.case.op, n.case.world_size) for n in reading.numbers}
    assert measured == {("all_reduce", 4), ("all_gather", 2), ("all_to_all", 4)}


def test_an_aborted_try_leaves_nothing_to_the_next(read):
    aborted = foreign.nccl("all_gather", ranks=8).split(foreign.HEADER[0])[0] + "node-1: Test CUDA failure\n"
    reading = read(aborted + foreign.nccl(ranks=4))
    assert {(n.case.op, n.case.world_size) for n in reading.numbers} == {("all_reduce", 4)}
    assert nccl_tests.COPIES not in {note.kind for note in reading.notes}


def test_independent_copies_are_reported(read):
    text = foreign.nccl(ranks=1)
    device = next(line for line in text.split("\n") if "Rank  0" in line)
    reading = read(text.replace(device, f"{device}\n{device.replace('node-1', 'node-2')}"))
    assert {n.case.world_size for n in reading.numbers} == {1}
    assert nccl_tests.COPIES(copies=2, ranks=1) in reading.notes


def test_outputs_of_two_tests_that_are_mixed_are_refused(read):
    first, second = (f"# nccl-tests version 2.18.0\n# Collective test starting: {test}_perf\n" for test in ("a", "b"))
    with pytest.raises(ForeignError, match="outputs of two executions are mixed"):
        read(first + second.split("\n", 1)[1] + foreign.nccl())


@pytest.mark.parametrize("blank", [" ", "\t"])
def test_a_half_whose_blanks_are_lost_has_no_placement(read, blank):
    """Rows of an in-place half only begin with blanks in place of the other half; a web page collapses them."""
    rows = foreign.nccl_rows()
    one = [row.split() for row in rows]
    text = foreign.nccl()
    for row, words in zip(rows, one, strict=True):
        text = text.replace(row, blank.join(words[:5] + words[9:]))
    try:
        assert not read(text).numbers
    except ForeignError as error:
        assert "no table" in str(error) or "row" in str(error)


@pytest.mark.parametrize("bars", ["{} |", "| {}", "│ {} │", "| **{}** |"])
def test_rows_with_bars_of_any_kind_are_read_or_counted(read, bars):
    text = foreign.nccl()
    cells = " | ".join(foreign.nccl_rows()[0].split())
    more = bars.format(cells.replace(" | ", " │ ") if "│" in bars else cells).replace("**", "**", 1)
    reading = read(text + "\n" + more)
    assert reading.rows + sum(reading.left_out.values()) > read(text).rows


@pytest.mark.parametrize(
    ("colours", "division"),
    [((0, 1, 0, 1), "strided:2"), ((0, 0, 1, 1), "contiguous:2"), ((0, 1, 1, 0), None), ((0, 0, 0, 0), "world")],
)
def test_groups_get_the_names_that_they_have_here(read, colours, division):
    text = foreign.nccl()
    for rank, colour in enumerate(colours):
        text = text.replace(f"Rank  {rank} Group  0", f"Rank  {rank} Group  {colour}")
    reading = read(text)
    assert {str(n.case.groups) for n in reading.numbers} == ({division} if division else set())
    assert division or nccl_tests.UNNAMED_DIVISION() in reading.left_out


# ── rows that are left out ───────────────────────────────────────────────────────────────────────
def test_rows_that_cannot_be_kept_are_counted_with_their_reason(read):
    rows = foreign.nccl_rows(dtype="uint32") + foreign.nccl_rows(sizes=(0, 0))
    text = foreign.nccl().replace(foreign.HEADER[2], "\n".join([foreign.HEADER[2], *rows]))
    reading = read(text)
    reasons = {readings.OTHER_DTYPE(dtype="uint32"): 4, readings.SIZE_0(): 2}
    assert +reading.left_out == reasons
    assert reading.rows == 10 and len(reading.numbers) == 8


# ── uneven shares ────────────────────────────────────────────────────────────────────────────────
def uneven(spread: float = 1.0, counts=(1000, 4096)) -> str:
    """Return output of alltoallv_perf on 4 ranks. counts: elements per peer if shares were even; 0 means a matrix."""
    rows = []
    for count in counts:
        distances = [int((1 - spread) * count * 4 + spread * d * count * 16 / 6) // 16 * 16 for d in range(4)]
        size = sum(distances) or 65536
        lead = f"{size:12d}  {count:12d}  {'float':>8}  {'none':>6}  {-1:6d}"
        rows.append(f"{lead}{foreign.half('alltoall', size, 4, 'out')}{foreign.half('alltoall', size, 4, 'in', 'N/A')}")
    text = foreign.nccl("alltoall").replace("alltoall_perf", "alltoallv_perf")
    return text.replace("\n".join(foreign.nccl_rows("alltoall")), "\n".join(rows))


def test_uneven_shares_are_an_uneven_all_to_all(read):
    reading = read(uneven())
    assert {str(number.case.splits) for number in reading.numbers} == {"distance:1"}
    assert {number.case.op for number in reading.numbers} == {"all_to_all"}
    assert nccl_tests.SPREAD_ASSUMED in {gap.kind for gap in reading.unknown}
    assert {note.kind for note in reading.notes} == {nccl_tests.BUSIEST_RANK}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (uneven(0.0), nccl_tests.NOT_BY_SPREAD(spread=1.0)),
        (uneven(counts=(0,)), nccl_tests.MATRIX_OF_BYTES()),
        (uneven().replace("nccl-tests version", "rccl-tests version"), nccl_tests.OTHER_DIVISION()),
    ],
)
def test_uneven_shares_that_the_file_does_not_state_are_left_out(read, text, reason):
    reading = read(text)
    assert not reading.numbers and reason in reading.left_out


@pytest.mark.parametrize("test", ["hypercube", "all_reduce_bias"])
def test_tests_without_a_counterpart_are_left_out(read, test):
    reading = read(foreign.nccl().replace("all_reduce_perf", f"{test}_perf"))
    assert not reading.numbers and readings.NO_COUNTERPART(test=f"{test}_perf") in reading.left_out
    with pytest.raises(ForeignError, match="nothing to import") as caught:
        assembly.assemble("nccl-tests", "x", [(Source(Path("x.txt"), "0", ""), reading)])
    assert sentences(caught.value.reasons) == [f"left out: 4 rows: {test}_perf has no counterpart here"]


def test_a_log_without_a_table_is_one_sentence(read):
    text = foreign.nccl().split(foreign.HEADER[0])[0]
    with pytest.raises(ForeignError, match="all_reduce_perf ended before its first row"):
        read(text + "node-1: Test CUDA failure common.cu:1304 'busy or unavailable'\n")
    with pytest.raises(ForeignError, match="no table of results of nccl-tests"):
        read("hello\n")


def test_a_list_of_ranks_that_the_file_contradicts_is_not_believed(read):
    """The log lacks the line of the last rank, but bandwidths, settings or the command line show one more rank."""
    complete = foreign.nccl("all_gather", 4, named=False)
    short = "\n".join(line for line in complete.split("\n") if "Rank  3" not in line)
    assert {n.case.world_size for n in read(short, "all_gather.log").numbers} == {4}
    alone = short.replace("nGpus 4", "nGpus 1")
    with pytest.raises(ForeignError, match="lists 3 ranks, but busbw is for 4"):
        read(alone, "all_gather.log")
    assert {n.case.world_size for n in read(alone, "all_gather.log", world_size=4).numbers} == {4}
    moved = foreign.nccl("broadcast", 4, named=False).replace("nGpus 4", "nGpus 1")
    listed = "\n".join(line for line in moved.split("\n") if "Rank  3" not in line)
    with pytest.raises(ForeignError, match="number of ranks"):
        read(f"$ mpirun -np 4 ./broadcast_perf -b 1K\n{listed}")


def test_nothing_of_an_execution_that_crashed_is_visible_in_the_next(read):
    crashed = "\n".join([*foreign.preamble("all_gather", 2, iters=100)[:1], "# Blocking Enabled: wait and barrier"])
    reading = read(
        f"$ ./all_gather_perf -g 2 -n 100\n{crashed}\n{foreign.nccl('all_reduce', 2, named=False)}",
        operation="all_reduce",
    )
    assert {(n.case.op, n.case.metric, n.case.depth) for n in reading.numbers} == {("all_reduce", "pipelined", 20)}


ENVELOPES = {
    "one object a line": lambda lines: "\n".join(
        json.dumps({"log": f"{line}\n", "stream": "stdout"}) for line in lines
    ),
    "lines that were cut": lambda lines: "\n".join(
        json.dumps({"log": part}) for line in lines for part in (line[:30], f"{line[30:]}\n")
    ),
    "a table in one line": lambda lines: "a\n" + json.dumps({"level": "info", "output": "\n".join(lines)}),
    "JSON in JSON": lambda lines: json.dumps({"log": json.dumps({"msg": "\n".join(lines)})}) + "\n",
    "behind a time stamp": lambda lines: "\n".join(
        f"2026-01-02 03:04:05 {json.dumps({'msg': line})}" for line in lines
    ),
    "no JSON": lambda lines: "stdout: b'" + "\\n".join(lines) + "'",
    "an array": lambda lines: json.dumps([{"_source": {"log": line}} for line in lines]),
}


@pytest.mark.parametrize("envelope", ENVELOPES)
def test_envelopes_of_log_collectors_are_removed(read, envelope):
    reading = read(ENVELOPES[envelope](foreign.nccl().split("\n")))
    assert len(reading.numbers) == 2 * len(foreign.SIZES) and not reading.unread
    assert {n.case.op for n in reading.numbers} == {"all_reduce"}


def test_rows_that_could_not_be_read_are_shown_with_their_lines(cli):
    lines = foreign.nccl().split("\n")
    cut = [line[:60] if ROW.match(line) and "65536" in line else line for line in lines]
    done = cli("import", "nccl-tests", cli.config("\n".join(cut), "all_reduce.log"))
    number = next(at for at, line in enumerate(cut, 1) if line.lstrip().startswith("65536"))
    assert done.returncode == 0 and f"all_reduce.log:{number}: " in done.stderr


@pytest.mark.parametrize(
    ("wrong", "count", "outcome"), [("0", "0", "0 OK"), ("N/A", "N/A", "N/A (the tool does not report it)")]
)
def test_errors_are_reported_as_the_tool_counted_them(cli, wrong, count, outcome):
    text = "\n".join(
        line.removesuffix("      0") + f"{wrong:>7}" if ROW.fullmatch(line) else line
        for line in foreign.nccl(wrong=wrong).split("\n")
    )
    assert cli("import", "nccl-tests", cli.config(text, "all_reduce.log")).returncode == 0
    report = cli("report", "--format", "nccl-tests").stdout
    rows = [line.split() for line in report.splitlines() if line[:1] == " " and line.split()[0].isdecimal()]
    assert rows and all(row[8] == row[12] == count for row in rows) and f"# Out of bounds values : {outcome}" in report


# ── torn rows, strange words, other tests ────────────────────────────────────────────────────────
MESSAGE = "n1:1:1 [0] NCCL INFO x"


def torn(at: int) -> str:
    """Return a log with a message inside its second row, in front of character `at`."""
    lines = foreign.nccl().split("\n")
    place = next(number for number, line in enumerate(lines) if line.lstrip().startswith("65536"))
    return "\n".join([*lines[:place], lines[place][:at] + MESSAGE, lines[place][at:], *lines[place + 1 :]])


@pytest.mark.parametrize("at", range(2, 112))
def test_a_row_that_is_torn_anywhere_is_right_or_counted(read, at):
    reading = read(torn(at))
    expected = {size: (foreign.time_s(size), foreign.time_s(size, "in")) for size in foreign.SIZES}
    for number in reading.numbers:
        assert number.failure is None and number.case.root == 0
        assert any(number.aggregate.time_s == pytest.approx(t, rel=2e-3) for t in expected[number.case.size_bytes])
    assert len(reading.numbers) == 8 or sum(reading.left_out.values())


def rows_only(test: str) -> str:
    return "\n".join(foreign.nccl_rows(test, 4))


def test_a_command_ends_the_output_above_it(read):
    text = "\n".join(
        f"+ mpirun -np 4 ./build/{test}_perf -g 1\n{rows_only(test)}" for test in ("reduce_scatter", "all_gather")
    )
    assert {n.case.op for n in read(text).numbers} == {"reduce_scatter", "all_gather"}


@pytest.mark.parametrize(
    "line",
    [
        "Linking /src/build/sendrecv_perf", "=== alltoall_perf done ===", "alltoall_perf", "-rwx 1 a b alltoall_perf",
        '{"image": "x/alltoall_perf", "note": "pulled"}', 'time=1 cmd="./alltoall_perf" msg="x"',
    ],
)  # fmt: skip
def test_a_word_that_is_not_a_command_names_no_test(read, line):
    with pytest.raises(ForeignError, match="the measured collective"):
        read(f"{line}\n{foreign.nccl('all_gather', named=False)}")


def test_rows_of_another_test_are_not_taken_for_this_one(read):
    """The reduce op and the number of elements distinguish the rows."""
    assert read(foreign.nccl("all_gather", named=False), operation="all_gather").numbers
    both = foreign.nccl("all_reduce") + rows_only("all_gather")
    reading = read(both.replace("# Collective test concluded", "#").replace("# Out of bounds", "#"))
    assert {n.case.op for n in reading.numbers} == {"all_reduce"} and len(reading.numbers) == 8
    assert reading.left_out[nccl_tests.CONTRADICTION()] == 4


def test_rows_whose_line_feed_was_lost_and_tables_in_one_line(read):
    text = foreign.nccl()
    joined = re.sub(r"(\n +1048576 .*)\n( +134217728 )", r"\1\2", text)
    assert joined != text and len(read(joined).numbers) == len(read(text).numbers)
    assert len(read(text.replace("\n", "#012")).numbers) == len(read(text).numbers)
    annotated = "\n".join(f'{line}\t{{"pod": "x"}}' if ROW.match(line) else line for line in text.split("\n"))
    assert len(read(annotated).numbers) == len(read(text).numbers)


@pytest.mark.parametrize("width", range(40, 120))
def test_a_table_that_a_terminal_wrapped_gives_no_time_in_the_other_placement(read, width):
    text = foreign.nccl("all_gather")
    pieces = [line[at : at + width] for line in text.split("\n") for at in range(0, max(1, len(line)), width)]
    try:
        numbers = read("\n".join(pieces)).numbers
    except ForeignError as error:
        assert "a narrow terminal wrapped the lines" in str(error)
        return
    assert numbers and width > 85
    for number in numbers:
        place = "out" if number.case.placement == "usual" else number.case.placement
        assert number.aggregate.time_s == pytest.approx(foreign.time_s(number.case.size_bytes, place), rel=2e-3)


def markdown(columns: int) -> str:
    """Return a printed table, and a table in Markdown with the first columns of other rows."""
    names = "size (B),count,type,redop,root" + 2 * ",time (us),algbw (GB/s),busbw (GB/s),#wrong"
    rows = [names.split(","), ["---:"] * 13, *map(str.split, foreign.nccl_rows(sizes=(2048, 4096)))]
    return foreign.nccl() + "\n".join(f"| {' | '.join(row[:columns])} |" for row in rows)


def test_rows_between_bars_are_read_or_counted(read):
    numbers = read(markdown(13), operation="all_reduce").numbers
    for size in (2048, 4096):
        times = {n.case.placement: n.aggregate.time_s for n in numbers if n.case.size_bytes == size}
        assert times == pytest.approx({"usual": foreign.time_s(size, "in"), "out": foreign.time_s(size)}, rel=2e-3)
    half = read("in-place or out-of-place?\n" + markdown(9))  # nothing states which half it is
    assert len(half.numbers) == 8 and half.left_out[readings.UNREADABLE_ROWS()] == len(half.unread) == 2
    named = read(markdown(9).replace("time (us)", "out-of-place time (us)"), operation="all_reduce")
    assert {n.case.placement for n in named.numbers if n.case.size_bytes == 2048} == {"out"}
    assert len(read(each_line(lambda line: f"> {line}")).numbers) == 8


def test_one_message_with_a_line_feed_does_not_glue_the_others(read):
    lines = [{"message": "starting\n"}, *({"message": line} for line in foreign.nccl().split("\n"))]
    assert len(read("\n".join(map(json.dumps, lines))).numbers) == 8


def test_the_version_of_rccl_tests_below_the_settings_ends_nothing(read):
    head, settings, *rest = foreign.nccl(named=False).split("\n", 2)
    text = f"$ mpirun -np 1 ./all_reduce_perf -g 4\n{head}\n# rccl-tests: Version abc\n" + "\n".join([settings, *rest])
    assert {(n.case.op, n.case.depth) for n in read(text).numbers} == {("all_reduce", 20)}
