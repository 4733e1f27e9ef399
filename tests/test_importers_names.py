"""Whatever the tables of foreign names lead to exists here; a file's name tells a collective if it tells only one."""

import pytest

from bench.catalog import nccl_tests_names
from bench.catalog.backends import BACKENDS
from bench.catalog.dtypes import DTYPES, REDUCE_OPS
from bench.catalog.operations import OPERATIONS
from bench.importers import names, nccl_tests, osu


def test_every_name_leads_to_something_that_exists():
    assert set(nccl_tests_names.OPERATIONS.values()) <= set(OPERATIONS)
    assert {test.op for test in osu.TESTS.values()} <= set(OPERATIONS)
    assert set(names.DTYPES.values()) <= set(DTYPES)
    assert {*nccl_tests_names.REDUCE_OPS.values(), names.DEFAULT_REDUCE_OP} <= set(REDUCE_OPS)
    assert {nccl_tests.BACKEND, "mpi"} <= set(BACKENDS)


def test_sizes_are_multiplied_where_ours_count_all_shares():
    """OSU's size is one rank's share of these; of reduce_scatter it is the whole already."""
    shares = {test.op for test in osu.TESTS.values() if test.scaled}
    assert shares == {op for op in ("all_gather", "gather", "scatter", "all_to_all") if OPERATIONS[op].pieces(4) == 4}


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("allreduce_8gpu.log", "all_reduce"),
        ("job.all-reduce.txt", "all_reduce"),
        ("nccl_reduce_scatter.txt", "reduce_scatter"),
        ("ReduceScatter.out", "reduce_scatter"),
        ("alltoall.txt", "all_to_all"),
        ("all_to_all.txt", "all_to_all"),
        ("gather.txt", "gather"),
        ("sendrecv_2nodes.txt", "sendrecv_ring"),
        ("bcast.txt", "broadcast"),
        ("allreduce_allgather.txt", None),
        ("output.txt", None),
    ],
)
def test_the_collective_in_a_file_name(name, op):
    assert names.operation_in(name) == op
