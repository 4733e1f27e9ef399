"""Times of the OSU Micro-Benchmarks are imported, sizes become totals, and the number of ranks is never guessed."""

from pathlib import Path

import pytest

import foreign
from collbench.catalog import collectives
from collbench.model.errors import ForeignError
from collbench.model.records import Case
from collbench.packages.interop.importers import osu
from collbench.packages.interop.importers.logs import LONGEST_LINE
from collbench.packages.interop.importers.readings import NO_COUNTERPART, Options, Source, read_source
from conftest import ended_after


@pytest.fixture
def read(tmp_path):
    def read(text: str, name: str = "x.txt", **options):
        path = tmp_path / name
        path.write_text(text)
        return osu.read(read_source(path), Options(**options))

    return read


def pair(title: str, unit: str, *rows: str) -> str:
    return "\n".join(["", f"# OSU {title} v7.4", "# Datatype: MPI_CHAR.", f"# Size      {unit}", *rows, ""])


@pytest.mark.parametrize("full", [False, True])
def test_an_all_reduce(read, full):
    numbers = read(foreign.osu(full=full), world_size=4).numbers
    assert numbers[0].case == Case("all_reduce", "mpi", 4, "float32", 1024, buffers="hot", placement="out")
    times = {n.case.size_bytes: n.aggregate.time_s for n in numbers}
    assert times == {size: pytest.approx(foreign.time_s(size), rel=1e-3) for size in foreign.SIZES}
    assert numbers[0].aggregate.iterations == (1000 if full else None)
    assert "averaged over ranks" in numbers[0].aggregate.statistic


@pytest.mark.parametrize(
    ("title", "op", "factor"),
    [
        ("MPI Allgather", "all_gather", 4),
        ("MPI All-to-All Personalized Exchange", "all_to_all", 4),
        ("MPI Gather", "gather", 4),
        ("MPI Scatter", "scatter", 4),
        ("MPI Broadcast", "broadcast", 1),
        ("MPI Reduce", "reduce", 1),
        ("MPI Reduce_scatter", "reduce_scatter", 1),
    ],
)
def test_sizes_become_totals(read, title, op, factor):
    """OSU's size is the share of one rank for the first four operations, and already the total for the others."""
    reading = read(foreign.osu(title, datatype="MPI_CHAR"), world_size=4)
    assert [(n.case.op, n.case.size_bytes) for n in reading.numbers] == [(op, size * factor) for size in foreign.SIZES]
    scaled = [note.values["ranks"] for note in reading.notes if note.kind is osu.SCALED_SIZES]
    assert scaled == ([4] if factor == 4 else [])


NCCL = "#Using NCCL\n" * 8 + foreign.osu("NCCL-CUDA Allreduce", datatype=None)
TABLE = "# Size       Avg Latency(us)\n1024   3.10\n"


@pytest.mark.parametrize(
    ("text", "options", "case"),
    [
        ("$ mpirun -np 16 --bind-to core ./osu_allreduce -f\n" + foreign.osu(), {}, ("all_reduce", "mpi", 16, "plain")),
        ("+ srun -N1 -n1 mpirun -np 8 ./osu_allreduce\n" + foreign.osu(), {}, ("all_reduce", "mpi", 8, "plain")),
        (NCCL, {}, ("all_reduce", "nccl", 8, "plain")),
        (TABLE, {"name": "osu_allreduce.txt", "world_size": 2, "backend": "mpi"}, ("all_reduce", "mpi", 2, "plain")),
        ("$ mpirun -n 4 ./osu_bcast\n" + TABLE, {"backend": "mpi"}, ("broadcast", "mpi", 4, "plain")),
    ],
)
def test_the_operation_the_library_and_the_ranks_are_known(read, text, options, case):
    found = read(text, **options).numbers[0].case
    assert (found.op, found.backend, found.world_size, found.memory) == case


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (foreign.osu(), {}, "--world-size N"),
        ("$ srun -n16 ./osu_allreduce\n" + foreign.osu(), {"world_size": 4}, "16 ranks"),
        (TABLE, {"name": "osu_allreduce.txt", "world_size": 2}, "--backend mpi"),
        (foreign.osu(), {"world_size": 2, "backend": "nccl"}, "states that it measured mpi"),
        *(
            (f"+ {command}\n{foreign.osu()}", {}, "number of ranks")
            for command in (
                "mpirun -np 4 -host a ./osu_allreduce : -np 4 -host b ./osu_allreduce",
                "mpirun --hostfile h nice -n 5 ./osu_allreduce", "jsrun -n 2 -a 4 ./osu_allreduce",
                "srun -N 2-4 --ntasks-per-node=4 ./osu_allreduce", "mpirun -np 16 ./osu_alltoall",
            )
        ),
    ],
)  # fmt: skip
def test_what_the_file_does_not_state_is_asked_for_and_never_overruled(read, text, options, message):
    with pytest.raises(ForeignError, match=message):
        read(text, **options)


def test_old_versions_do_not_print_the_datatype(read):
    reading = read(foreign.osu(datatype=None) + foreign.osu("MPI Broadcast", datatype=None), world_size=2)
    assert {(n.case.op, n.case.dtype) for n in reading.numbers} == {("all_reduce", "float32"), ("broadcast", "int8")}
    assert osu.DATATYPE_ASSUMED in {gap.kind for gap in reading.unknown}


def test_pairs(read):
    latency = read(pair("MPI Latency Test", "Latency (us)", "0   1.80", "1024   2.50")).numbers
    assert [(n.case.op, n.case.world_size, n.case.metric, n.aggregate.time_s) for n in latency] == [
        ("send_recv", 2, "isolated", pytest.approx(2.5e-6))
    ]
    bandwidth = read(pair("MPI Bandwidth Test", "Bandwidth (MB/s)", "1048576   10000.00")).numbers[0]
    assert (bandwidth.case.op, bandwidth.case.metric, bandwidth.case.depth) == ("send_recv", "pipelined", 64)
    assert bandwidth.aggregate.time_s == pytest.approx(1048576 / 10e9)
    both = read(pair("MPI Bi-Directional Bandwidth Test", "Bandwidth (MB/s)", "1048576   20000.00")).numbers[0]
    assert both.case.op == "sendrecv_pair" and both.aggregate.time_s == pytest.approx(2 * 1048576 / 20e9)


@pytest.mark.parametrize(
    ("buffers", "memory"),
    [
        ("", "device"),
        ("# Send Buffer on HOST (H) and Receive Buffer on HOST (H)\n", "plain"),
        ("# Send Buffer on HOST (H) and Receive Buffer on DEVICE (D)\n", "plain"),
        ("# Buffer on HOST (H)\n", "plain"),
    ],
)
def test_memory_of_a_gpu_and_of_a_host_are_distinguished(read, buffers, memory):
    text = pair("MPI-CUDA Latency Test", "Latency (us)", "1024   2.50")
    assert read(text.replace("# Datatype", f"{buffers}# Datatype")).numbers[0].case.memory == memory


def test_a_barrier_has_no_size(read):
    (number,) = read("# OSU MPI Barrier Latency Test v7.4\n# Avg Latency(us)\n      4.20\n", world_size=4).numbers
    assert number.aggregate.time_s == pytest.approx(4.2e-6)
    assert number.case == collectives.usual(Case("barrier", "mpi", 4, "float32", 1024))  # as it is measured here


NON_BLOCKING = """# OSU MPI Non-blocking Allreduce Latency Test v7.4
# Overall = Coll. Init + Compute + MPI_Test + MPI_Wait

# Datatype: MPI_FLOAT.
# Size           Overall(us)       Compute(us)    Pure Comm.(us)        Overlap(%)
1024                   50.00             25.00             26.50             95.00
"""
VALIDATED = """# OSU MPI Allreduce Latency Test v7.5
# Datatype: MPI_INT.
# Size       Avg Latency(us)        Validation  P50 Tail Lat(us)  P90 Tail Lat(us)
1024                   10.00              Pass              9.00             12.00
2048                   20.00              Fail             19.00             22.00
"""


def test_non_blocking_operations_are_asynchronous_calls(read):
    (number,) = read(NON_BLOCKING, world_size=4).numbers
    assert number.case.call == "async" and number.aggregate.time_s == pytest.approx(26.5e-6)
    headless = "\n".join(line for line in NON_BLOCKING.split("\n") if not line.startswith("# Size"))
    assert read(headless, world_size=4).numbers == [], "which column is communication is not known"


def test_validation_and_percentiles(read):
    good, bad = read(VALIDATED, world_size=4).numbers
    assert good.verified is True and good.aggregate.time_s == pytest.approx(1e-5) and good.case.dtype == "int32"
    assert bad.failure.kind == "wrong" and bad.aggregate is None


@pytest.mark.parametrize("part", ["mpirun -n 1 ", "mpirun", " -n 1", "#OSU ", "# OSU a ", " ", "# OSU a Test "])
def test_lines_that_almost_fit_a_pattern_do_not_take_hours(part):
    """A hundred such lines once took a minute, the largest file hours; the limit of 60 s detects a hang only."""
    text = "\n".join([("# OSU a " + part * LONGEST_LINE)[:LONGEST_LINE]] * 100)
    with ended_after(60), pytest.raises(ForeignError):
        osu.read(Source(Path("x"), "0", text), Options())


BANDWIDTH = "$ srun -n2 ./osu_bw\n" + pair("MPI Bandwidth Test", "Bandwidth (MB/s)", "1048576   20000.00")
EXCHANGE = pair("MPI All-to-All Personalized Exchange Latency Test", "Avg Latency(us)", "1048576   500.00")


def test_a_command_line_states_the_ranks_of_its_own_test_only(read):
    commands = {"srun -N2 --ntasks-per-node=4": 8, "srun --nodes 2 --ntasks-per-node 3": 6, "mpiexec -n 5": 5}
    for command, ranks in commands.items():
        numbers = read(f"{BANDWIDTH}$ {command} ./osu_alltoall{EXCHANGE}").numbers
        cases = {(n.case.op, n.case.world_size, n.case.size_bytes) for n in numbers}
        assert cases == {("send_recv", 2, 1 << 20), ("all_to_all", ranks, ranks << 20)}
    for unknown in ("", "$ srun ./osu_alltoall", "$ srun -N2 ./osu_alltoall"):
        with pytest.raises(ForeignError, match="number of ranks"):
            read(f"{BANDWIDTH}{unknown}{EXCHANGE}")
        assert {n.case.world_size for n in read(f"{BANDWIDTH}{unknown}{EXCHANGE}", world_size=8).numbers} == {2, 8}


LATENCY = pair("MPI Latency Test", "Bandwidth (MB/s)", "1024   4.00")
TORN_TITLE = foreign.osu("MPI Broadcast").replace("v7.4", "v7.4 [n1:12] UCX WARN x")
OTHERS = foreign.osu("MPI Multi") + foreign.osu("MPI_Put") + foreign.osu("MPI Persistent Allreduce")


@pytest.mark.parametrize(
    ("text", "op", "numbers", "kind", "rows"),
    [
        # A second header ends the table of a title.
        (pair("MPI Bandwidth Test", "Bandwidth (MB/s)", "1024   1.00") + TABLE, "send_recv", 1, osu.NO_TITLE, 1),
        (foreign.osu() + LATENCY, "all_reduce", 4, osu.OTHER_COLUMNS, 1),
        (foreign.osu() + TORN_TITLE, "all_reduce", 4, osu.NO_TITLE, 4),
        (foreign.osu() + OTHERS, "all_reduce", 4, NO_COUNTERPART, 12),
    ],
)
def test_rows_below_another_title_are_left_out_and_counted(read, text, op, numbers, kind, rows):
    reading = read(text, world_size=4)
    assert [number.case.op for number in reading.numbers] == [op] * numbers
    left_out = +reading.left_out
    assert {notice.kind for notice in left_out} == {kind} and sum(left_out.values()) == rows


def test_lines_that_begin_like_a_row_are_read_or_counted(read):
    rows = "256  0.40", "512  8.00  <- another protocol", "1024  8.2", "2048", "4096  9.00  1.00", "8192  x"
    reading = read(pair("MPI Latency Test", "Avg Latency(us)", *rows))
    assert [n.case.size_bytes for n in reading.numbers] == [256, 512]
    assert [line.text.split()[0] for line in reading.unread] == ["2048", "4096", "8192"]
    assert sum(reading.left_out.values()) == 4


@pytest.mark.parametrize("prefix", ["", "INFO:osu_latency.py:{}: ", "2026-01-02 03:04:05,{} - INFO - "])
def test_output_of_mpi4py_and_omb_py_is_read(read, prefix):
    def logged(*lines: str) -> str:
        return "\n".join(prefix.format(100 + at) + line for at, line in enumerate(lines))

    demo = read(logged("# MPI Allgather Latency Test", "# Size [B]   Latency [us]", "1024   25.50"), world_size=4)
    (case,) = (number.case for number in demo.numbers)
    assert (case.op, case.backend, case.size_bytes) == ("all_gather", "mpi", 4096) and "mpi4py" in demo.tools[0]
    text = logged("# OMB-Py MPI Bandwidth Test", "# Size (B)  Bandwidth (GB/s)", "1048576     10.00")
    port = read(text, backend="gloo").numbers[0]
    assert port.case.backend == "gloo" and port.aggregate.time_s == pytest.approx(1048576 / 10e9)
    assert osu.LIBRARY_UNKNOWN() in read(text).unknown


def test_numbers_outside_rows_are_counted(read):
    reading = read(pair("MPI Latency Test", "Avg Latency(us)", "256  0.40", "512  0.50", "1  88.10", "100 3.14"))
    assert [n.case.size_bytes for n in reading.numbers] == [256, 512] and len(reading.unread) == 2
    above = "4096   7.10\n8192   9.30\n" + pair("MPI Latency Test", "Avg Latency(us)", "256  0.40")
    assert [line.text for line in read(above).unread] == ["4096   7.10", "8192   9.30"]


def test_line_numbers_are_not_taken_for_sizes(read):
    lines = [f"{99996 + at:6d}\t{line}" for at, line in enumerate(foreign.osu().split("\n"))]
    assert {n.case.size_bytes for n in read("\n".join(lines), world_size=2).numbers} <= {*foreign.SIZES}
