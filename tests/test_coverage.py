"""The page of what runs: every combination that was asked for is in it, and every reason stands once."""

import re

import numpy as np

from bench.catalog.dtypes import DTYPES, REDUCE_OPS
from bench.catalog.operations import CALLS
from bench.config.models import load
from bench.model.records import Case, Failure, Samples, Skip
from bench.report import coverage
from conftest import ROOT, invented_run, samples


def good(case: Case) -> Samples:
    return samples(case, 1, np.full((6, case.world_size), 10**5))


def case(op="all_reduce", dtype="float32", reduce_op="sum", n=2, backend="gloo") -> Case:
    return Case(op, backend, n, dtype, 4096, reduce_op=reduce_op)


def page(ran=(), skips=(), failed=()) -> str:
    made = [*map(good, ran), *(Samples(one, 1, 0.0, failure=Failure(*why)) for one, why in failed)]
    text = coverage.document(invented_run(made, [Skip(*skip) for skip in skips]), None)
    return re.sub(r":-+", ":--", re.sub(r" *\| *", "|", text))


def test_a_page():
    text = page(
        ran=[
            *(case(dtype=d, reduce_op=r) for d in ("float32", "float64") for r in ("sum", "max")),
            *(case("sendrecv_ring", d) for d in ("float32", "float64")),
            case("barrier"),
        ],
        skips=[
            *((case(dtype=d, reduce_op="band"), f"band is not defined for {d}") for d in ("float32", "float64")),
            *((case(dtype="int16", reduce_op=r), "gloo has no int16") for r in ("sum", "max", "band")),
            (case("sendrecv_ring", "int16"), "gloo has no int16"),
            (case(backend="mpi"), "mpi4py is not installed"),
            (case("sendrecv_ring", backend="mpi"), "mpi4py is not installed"),
        ],
    )
    assert (
        text[text.index("## gloo") :]
        == """\
## gloo

World sizes: 2.

||float32, float64|int16|no dtype|
|:--|:--|:--|:--|
|all_reduce|sum max; band [1]|[2]||
|sendrecv_ring|✓|[2]||
|barrier|||✓|

1. *reduce op* is not defined for *dtype*
2. gloo has no *dtype*

## mpi

Nothing was measured: mpi4py is not installed
"""
    )


def test_what_failed_is_said_to_have_failed():
    text = page(ran=[case()], failed=[(case("sendrecv_ring"), ("wrong", 1, "element 3 is wrong"))])
    assert "|sendrecv_ring|[1]|" in text and "\n1. **failed** wrong: element 3 is wrong\n" in text
    assert "1 of 2 measurements good, 1 failed" in text


def test_world_sizes_that_did_not_run_are_told():
    text = page(
        ran=[case(n=2), case(n=4), case("sendrecv_ring", n=2)],
        skips=[(case("sendrecv_ring", n=4), "needs 4 × 1 GiB of memory")],
    )
    assert "World sizes: 2, 4." in text and "|all_reduce|sum|" in text and "|sendrecv_ring|✓ at 2 ranks [1]|" in text


def test_names_within_words_are_left_alone():
    skip = (case("reduce", "int8", "sum"), "premul_sum of uint8 by reduce_scatter is not reduce of int8 by sum")
    assert "premul_sum of uint8 by reduce_scatter is not *operation* of *dtype* by *reduce op*" in page(
        [case()], [skip]
    )


def test_the_configuration_asks_for_everything():
    config, _ = load(ROOT / "configs/everything.yaml")
    assert set(config.operations) == set(CALLS)
    assert set(config.dtypes) == set(DTYPES) and set(config.reduce_ops) == set(REDUCE_OPS)
