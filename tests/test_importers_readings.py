"""A text file is read as lines, any other file is refused in one sentence; labels of launchers are removed."""

import os
from pathlib import Path

import pytest

from collbench.model.errors import ForeignError
from collbench.packages.interop.importers import readings
from collbench.packages.interop.importers.readings import operation_in, read_source


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b" \n\t\n", "empty"),
        (bytes(range(256)) * 8, "not UTF-8 text"),
        (b"\x1f\x8b\x08rest", "packed with gzip"),
        (b"\x7fELF" + bytes(500), "not UTF-8 text"),
        ("# size\r\n  8 \u00b5s\r\n".encode("utf-16"), "not UTF-8 text"),
        (None, "larger than 64 MiB"),
    ],
)
def test_files_that_are_not_text_or_enormous_are_refused(tmp_path, content, words):
    path = tmp_path / "x"
    path.write_bytes(content or b"")
    if content is None:
        os.truncate(path, readings.LIMIT_BYTES + 1)
    with pytest.raises(ForeignError, match=words):
        read_source(path)


LABELS = (
    "[1,0]<stdout>:", "[1,12]<stderr>: ", "[prterun-a-1@1,3]<stdout>: ", "[0] ", "0: ", "  12: ", "node-01: ",
    "2026-01-02T03:04:05Z ", "2026-01-02 03:04:05,678 ", "[2026-01-02 03:04:05] ", "03:04:05.678 ",
    "2026-01-02T03:04:05.6+02:00 stderr F ", "0: [1,0]<stdout>:", "\x1b[1m[0] \x1b[0m",
)  # fmt: skip


def test_labels_of_launchers_are_removed_and_other_lines_stay():
    def line_of(text: str) -> str:
        return readings.Source(Path("x"), "0", text).lines()[0].text

    for label in LABELS:
        for line in ("# size  count", "   1024  256  float", "#"):
            assert line_of(label + line).strip() == line.strip()
    for line in ("1024  12.3", "12.5", "# OSU MPI Latency Test v7", "Rank  0 on node device", "a: b"):
        assert line_of(line) == line


def test_a_file_name_gives_the_collective_if_it_names_only_one():
    names = {
        "allreduce_8gpu.log": "all_reduce",
        "job.all-reduce.txt": "all_reduce",
        "nccl_reduce_scatter.txt": "reduce_scatter",
        "ReduceScatter.out": "reduce_scatter",
        "alltoall.txt": "all_to_all",
        "all_to_all.txt": "all_to_all",
        "gather.txt": "gather",
        "sendrecv_2nodes.txt": "sendrecv_ring",
        "bcast.txt": "broadcast",
        "allreduce_allgather.txt": None,
        "output.txt": None,
    }
    assert {name: operation_in(name) for name in names} == names
