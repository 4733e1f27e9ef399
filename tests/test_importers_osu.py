"""Times of the OSU Micro-Benchmarks are imported, sizes become totals, and the number of ranks is never guessed."""

import pytest

import foreign
from collbench.model.errors import ForeignError
from collbench.packages.interop.importers import osu
from collbench.packages.interop.importers.readings import NO_COUNTERPART, Options, read_source


@pytest.fixture
def read(tmp_path):
    def read(text: str, name: str = "x.txt", **options):
        path = tmp_path / name
        path.write_text(text)
        return osu.read(read_source(path), Options(**options))

    return read


def pair(title: str, unit: str, *rows: str) -> str:
    return "\n".join(["", f"# OSU {title} v7.4", "# Datatype: MPI_CHAR.", f"# Size      {unit}", *rows, ""])


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


TABLE = "# Size       Avg Latency(us)\n1024   3.10\n"


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
