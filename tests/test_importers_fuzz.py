"""Whatever happens to a file on its way: importing it gives a run or one sentence, no traceback, no impossible case."""

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import foreign
from bench.catalog.operations import OPERATIONS
from bench.importers import assembly
from bench.importers.readings import Options, Source, decode
from bench.model.errors import ForeignError
from bench.model.visible import visible
from bench.store import encoding

FILES = {
    "nccl-tests": [foreign.nccl(), foreign.nccl_old(), foreign.nccl_json()],
    "osu": [foreign.osu(full=True), "#Using NCCL\n" * 4 + foreign.osu("NCCL-CUDA Allgather")],
}
PIECES = st.one_of(
    st.binary(max_size=6),
    st.sampled_from(
        [b"\n", b"\r", b"\x1b[31m", b"9" * 60, b"-1", b"1e99", b"nan", b" 0 ", b"\0", b"\xff\xfe", b'"', b"{"]
    ),
)


def imported(format: str, raw: bytes) -> assembly.Imported:  # noqa: A002
    path = Path("all_reduce.txt")
    source = Source(path, "0", decode(path, raw))
    reading = assembly.READERS[format](source, Options())
    return assembly.assemble(format, "x", [(source, reading)])


@pytest.mark.parametrize("format", FILES)
@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_mutilated_files(format, data):  # noqa: A002
    raw = bytearray(data.draw(st.sampled_from(FILES[format])).encode())
    for _ in range(data.draw(st.integers(0, 6))):
        at = data.draw(st.integers(0, len(raw)))
        raw[at : at + data.draw(st.integers(0, 40))] = data.draw(PIECES)
    raw = raw[: data.draw(st.integers(0, len(raw)))] if data.draw(st.booleans()) else raw
    try:
        run = imported(format, bytes(raw))
    except ForeignError as error:
        assert visible(str(error), kept="") == str(error)
        return
    for samples in run.samples:
        case = samples.case
        assert case.op in OPERATIONS and case.world_size >= 1 and case.size_bytes >= 0
        assert samples.failure is not None or 0 < samples.aggregate.time_s < math.inf
        assert encoding.samples_from_line(encoding.samples_to_line(samples)) == samples
    assert encoding.plan_from_json(encoding.plan_to_json(run.plan)).total == len(run.samples)


@pytest.mark.parametrize("format", FILES)
@settings(max_examples=60, deadline=None)
@given(raw=st.binary(max_size=400))
def test_anything_at_all(format, raw):  # noqa: A002
    with pytest.raises(ForeignError):
        imported(format, raw)
