"""PARAM's COMMS-RES rows of all its layouts arrive; what they do not tell is said or asked for."""

import pytest

import foreign
from bench.importers import param, sources
from bench.importers.found import Options, Printed, agrees
from bench.model.errors import ForeignError
from bench.model.records import Case

OLD = (
    "\n\tCOMMS-RES\tsize (B)\t num-elements\t Latency(us):p50\tp75\t\tp95\t algBW(GB/s)\t busBW(GB/s)\n"
    "\tCOMMS-RES\t1048576\t262144\t\t124.9\t125.0\t126.0\t8.395\t12.593\n"
)


@pytest.fixture
def read(tmp_path):
    def read(text: str, name: str = "x.txt", **options):
        path = tmp_path / name
        path.write_text(text)
        return param.read(sources.read(path), Options(**options))

    return read


@pytest.mark.parametrize("dtype", ["float32", None])
def test_the_median_over_ranks_is_taken(read, dtype):
    reading = read(foreign.param(dtype=dtype))
    assert reading.numbers[0].case == Case("all_reduce", "nccl", 4, "float32", 1024, buffers="hot")
    times = {n.case.size_bytes: n.aggregate.time_s for n in reading.numbers}
    assert times == {size: pytest.approx(foreign.time_s(size), rel=5e-3) for size in foreign.SIZES}
    assert reading.numbers[0].aggregate.statistic.startswith("median over ranks of each rank's mean")
    assert not reading.notes


@pytest.mark.parametrize(
    ("collective", "op"),
    [("all_gather", "all_gather_list"), ("all_gather_base", "all_gather"), ("reduce_scatter_base", "reduce_scatter")],
)
def test_lists_of_tensors_are_operations_of_their_own(read, collective, op):
    assert {n.case.op for n in read(foreign.param(collective)).numbers} == {op}


def test_calls_that_were_not_waited_for_are_pipelined(read):
    text = foreign.param(blocking=0)
    assert {(n.case.metric, n.case.depth) for n in read(text).numbers} == {("pipelined", 1)}
    with_command = "$ mpirun -np 4 ./comms.py --n 50 --z 0\n" + text
    assert {(n.case.metric, n.case.depth) for n in read(with_command).numbers} == {("pipelined", 50)}


def test_backends_and_dtypes(read):
    text = (
        foreign.param(dtype=None).replace("backend: nccl", "backend: gloo").replace("torch.float32", "torch.bfloat16")
    )
    assert {(n.case.backend, n.case.dtype) for n in read(text).numbers} == {("gloo", "bfloat16")}
    assert not read(foreign.param().replace("backend: nccl", "backend: xla")).numbers


def test_the_oldest_layout_names_nothing(read):
    with pytest.raises(ForeignError, match="--operation"):
        read(OLD, world_size=4)
    with pytest.raises(ForeignError, match="--world-size N"):
        read(OLD, operation="all_reduce")
    reading = read(OLD, operation="all_reduce", world_size=4)
    assert reading.numbers[0].aggregate.time_s == pytest.approx(124.9e-6)
    assert any("dtype" in what for what in reading.unknown) and not reading.notes


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (foreign.param("all_to_allv"), "all_to_allv has no counterpart here"),
        (foreign.param().replace("COMMS-RES-all", "COMMS-RES-QUANT-all"), "quantised"),
        (
            foreign.param().replace("mode: comms ", "mode: comms-compute "),
            "mode comms-compute: not communication alone",
        ),
        (foreign.param().replace("  size (B)", "  total-size (B)"), "two collectives at once"),
        (foreign.param().replace("element_size: 4", "element_size: 4, groupSize 2"), "groups of 2 of 4 ranks"),
    ],
)
def test_other_modes_are_left_out(read, text, reason):
    reading = read(text)
    assert not reading.numbers
    assert any(found.startswith(reason) for found in reading.left_out)


def test_bandwidths_that_do_not_follow_are_noted(read):
    text = foreign.param().replace("'world_size': 4", "'world_size': 8")
    assert any("do not follow" in note for note in read(text).notes)


def test_a_slowest_rank_that_took_no_time_is_noted_and_not_divided_by():
    times = Printed(0.0, 0.0)
    assert not agrees(1e6, times, Printed(8.4, 0.0005))
    assert not agrees(1e6, Printed(-2.5e13, 2.5e13), Printed(8.4, 0.0005))
