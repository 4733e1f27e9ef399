"""A run in the layout of nccl-tests has its columns, our numbers, and comments that describe the numbers."""

import json
import re
from dataclasses import replace

import numpy as np

from collbench.analyze.analysis import analyze
from collbench.catalog.collectives import CALLS, OPERATIONS
from collbench.model.divisions import Division
from collbench.model.records import Case, Failure, Samples
from collbench.packages.interop.report import nccl_files, nccl_tests
from collbench.report.view import View
from conftest import invented_run, samples

# As in the output of nccl-tests 2.19.
HEADER = """\
#                                                              out-of-place                       in-place          
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)        
"""  # noqa: W291 - so are its lines
PIPELINED = {"metric": "pipelined", "depth": 20}


def measured(case: Case, microseconds: float, launch: int = 1) -> Samples:
    return samples(case, launch, np.full((10, case.world_size), round(1000 * microseconds), dtype=np.int64))


def text(*made: Samples, launches: int = 1) -> str:
    run = invented_run(list(made), launches=launches)
    return nccl_tests.document(View(run, analyze(run)))


def rows(document: str) -> list[list[str]]:
    return [line.split() for line in document.splitlines() if line and not line.startswith("#")]


def read_as_clients_do(text: str) -> tuple[list[list[str]], set[str]]:
    """Return the rows and the nodes, read with no more care than public clients take.

    Rows: `grep float | awk 'NF==13'`. Nodes: `grep -oP ' on \\K[^\\s]+'`; names shorter than the column are not found.
    """
    rows = [line.split() for line in text.splitlines() if "float" in line and len(line.split()) == 13]
    return rows, set(re.findall(r"(?<= on )[^\s]+", text))


def test_a_table():
    cases = [
        Case("all_gather", "gloo", 2, "bfloat16", size, placement=place, **PIPELINED)
        for size in (4096, 2**20) for place in ("usual", "in")
    ]  # fmt: skip
    times = (100, 50, 400, 123456.4)
    report = text(*(measured(case, t) for case, t in zip(cases, times, strict=True)))
    assert report.startswith("# CollBench version") and HEADER in report and "One half" not in report
    assert "minBytes 4096 maxBytes 1048576 step: 256(factor) warmup iters: 100 iters: 20" in report
    assert "mean over iterations" in report and "graph: 0" in report
    assert [" ".join(row) for row in rows(report)] == [
        "4096 1024 bfloat16 none -1 100.00 0.04 0.02 0 50.00 0.08 0.04 0",
        "1048576 262144 bfloat16 none -1 400.00 2.62 1.31 0 123456 0.01 0.00 0",
    ]
    assert {len(line) for line in report.splitlines() if line and not line.startswith("#")} == {
        len(HEADER.split("\n")[1])
    }
    assert "# Out of bounds values : 0 OK" in report and "# Avg bus bandwidth    : 0.344102" in report


def test_missing_measurements_are_not_available():
    (row,) = rows(half := text(measured(Case("broadcast", "gloo", 2, "float32", 4096, root=1), 100)))
    assert (
        "# One half is nan: skipped (report.md) or not asked for; placements [in, out], or one copied, fill both"
        in half
    )
    assert row == ["4096", "1024", "float", "none", "1", "nan", "nan", "nan", "N/A", "100.00", "0.04", "0.04", "0"]
    (row,) = rows(text(measured(Case("all_reduce", "gloo", 1, "float32", 4096), 100)))
    assert row[-4:] == ["100.00", "0.04", "0.00", "0"]  # as nccl-tests prints for a single rank


def test_wrong_and_failed_cases_have_no_numbers():
    case = Case("all_reduce", "nccl", 2, "float16", 4096, reduce_op="product")
    report = text(Samples(case, 1, 0.0, failure=Failure("wrong", 1, "element 3 is wrong")))
    assert rows(report) == [["4096", "2048", "half", "prod", "-1", *["nan"] * 3, "N/A", *["nan"] * 3, "1"]]
    assert "# Out of bounds values : 1 FAILED" in report
    assert "# failed (wrong, rank 1; report.md says why): 4096 B in place" in report
    assert "Avg bus bandwidth" not in report


def test_ranks_have_the_number_of_their_group():
    case = Case("all_reduce", "gloo", 4, "float32", 4096, groups=Division("strided", 2))
    ranks = [{"rank": rank, "hostname": "h"} for rank in range(4)]
    launch = {"backend": "gloo", "world_size": 4, "ranks": ranks}
    run = replace(invented_run([measured(case, 10)]), environment=[{"launches": [launch], "job": {"ranks": 4}}])
    view = View(run, analyze(run))
    lines = [line.split() for line in nccl_tests.document(view).splitlines() if line.startswith("#  Rank")]
    config = json.loads(nccl_files.nccl_tests_json(view))["config"]
    assert [line[4] for line in lines] == ["0", "1", "0", "1"]
    assert [device["group"] for device in config["devices"]] == [0, 1, 0, 1]


def test_every_operation_has_a_table():
    made = [
        measured(Case(op, "gloo", 4, "float32" if OPERATIONS[op].typed else "bytes", 4096 * OPERATIONS[op].sized), 10)
        for op in CALLS
    ]
    report = text(*made)
    assert len(rows(report)) == len(CALLS) - 1
    assert "# no size, no columns: barrier · gloo · 4 ranks: 10.00 us" in report


def test_json_has_the_content_of_the_text_and_nothing_unknown():
    case = Case("all_reduce", "gloo", 4, "float32", 4096)
    unevenly = [{"rank": rank, "hostname": f"node{rank // 3}"} for rank in range(4)]  # 3 on one host, 1 on the other
    made = invented_run([measured(case, 100, 1), measured(case, 300, 3)], launches=3)
    evenly = [{"rank": rank, "hostname": f"node{rank // 2}"} for rank in range(4)]
    for ranks, division in (([], (None, None)), (unevenly, (2, None)), (unevenly[:3], (None, None)), (evenly, (2, 2))):
        launches = [{"backend": "gloo", "world_size": 4, "ranks": ranks}]
        run = replace(made, environment=[{"launches": launches}])
        entries = json.loads(nccl_files.rccl_tests_json(View(run, analyze(run))))
        assert [(entry["numCycle"], entry["time"]) for entry in entries] == [(0, 100.0), (2, 300.0)]  # launch 2 failed
        assert {(entry["nodes"], entry["ranksPerNode"]) for entry in entries} == {division}
    unchecked = {"tool": ["x"], "files": []}
    for imported, count, okay in ((None, 0, "true"), (unchecked, None, None)):
        run = replace(made, manifest=made.manifest | {"imported": imported})
        content = json.loads(nccl_files.nccl_tests_json(View(run, analyze(run))))
        assert content["out_of_bounds"] == {"count": count, "okay": okay}
        assert content["config"]["validation"] == (1 if imported is None else None)
        text_of_run = nccl_tests.document(View(run, analyze(run)))
        assert ("Out of bounds values : 0 OK" in text_of_run) == (imported is None)
