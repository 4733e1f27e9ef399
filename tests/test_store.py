"""Measurements are kept through crashes, full disks and manual edits; unreadable files are reported."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.model.errors import StoreError
from collbench.model.notices import kind_named
from collbench.model.records import Case, Failure, Fault, Launch, Plan, Samples, Settings, Skip, Timings
from collbench.planning.plan import SEVERAL_REASONS
from collbench.report.notices import sentences
from collbench.store import encoding, folders
from collbench.store.folders import Journal
from conftest import SAMPLING, samples

CASE = Case("all_reduce", "gloo", 2, "float32", 4096)
SKIPS = (
    Skip(CASE, SEVERAL_REASONS(host="b", reasons=(kind_named("no-root")(root=3, ranks=2),))),
    Skip(CASE, kind_named("low-capability")(backend="nccl", dtype="float8_e5m2", least=9.0, has=8.0)),
)
PLAN = Plan(
    "t", (Launch("gloo", 2, 1, (CASE,)), Launch("gloo", 2, 2, (CASE,))), SKIPS, 2,
    Settings(SAMPLING, 5, 60.0, 64, faults=(Fault("kill", 1),)),
)  # fmt: skip


def line(launch: int = 1) -> bytes:
    return encoding.samples_to_line(samples(CASE, launch, [[10, 12], [11, 13], [12, 14]]))


@pytest.fixture
def run(tmp_path):
    return folders.create(tmp_path, PLAN, b"name: t\n", {"argv": ["run"]})


def write_lines(run, *lines: bytes) -> None:
    with Journal(run) as journal:
        for entry in lines:
            journal.append(entry)


TIMES = st.integers(0, 2**50)
ROWS = st.integers(1, 4).flatmap(lambda n: st.lists(st.lists(TIMES, min_size=n, max_size=n), min_size=1, max_size=9))
REASONS = st.text('a \n"\\é☃\x00', max_size=8)
FAILURES = st.builds(Failure, st.sampled_from(["hang", "wrong"]), st.none() | st.integers(0, 9), REASONS)


@settings(max_examples=25)
@given(ROWS, st.none() | FAILURES)
def test_any_samples_survive_the_way_through_a_line(rows, failure):
    case = Case("all_reduce", "gloo", len(rows[0]), "float32", 4)
    array = np.array(rows, dtype=np.int64)
    before = Samples(case, 3, 1.5, 7, None, Timings(array, array, array), "count", None, failure)
    text = encoding.samples_to_line(before)
    assert b"\n" not in text
    after = encoding.samples_from_line(text)
    assert (after.case, after.launch, after.failure, after.stopped_by) == (case, 3, failure, "count")
    assert (after.timed.host_ns == array).all()


def test_a_torn_last_line_counts_as_not_measured(run):
    write_lines(run, line(1))
    with (run / "samples.jsonl").open("ab") as file:
        file.write(line(2)[:40])
    read = folders.read(run)
    assert len(read.samples) == 1 and "torn" in sentences(read.notices)[0]
    write_lines(run, line(2))  # a resume drops the torn line and goes on
    assert [s.launch for s in folders.read(run).samples] == [1, 2]


@pytest.mark.parametrize(
    "damage",
    [b"{}", b"nonsense", b"[1]", b"null", line()[:50], line().replace(b'"duration_ns":[[10', b'"duration_ns":[['),
     line().replace(b'"world_size":2', b'"world_size":3'), line().replace(b"[10,11,12]", b"[10,11]"),
     line().replace(b'"op":"all_reduce"', b'"op":7')],
)  # fmt: skip
def test_a_damaged_line_costs_its_case_and_is_named_with_its_number(run, damage):
    (run / "samples.jsonl").write_bytes(line(1) + b"\n" + damage + b"\n" + line(2) + b"\n")
    read = folders.read(run)
    assert [entry.launch for entry in read.samples] == [1, 2]
    (warning,) = sentences(read.notices)
    assert re.search(r"samples\.jsonl: line 2: damaged: .*; that case counts as not measured; collbench", warning)


def test_one_writer_at_a_time_and_a_dead_one_is_noticed(run):
    assert folders.read_manifest(run)["status"] == "interrupted"  # "running" is written, but no process runs
    with Journal(run):
        assert folders.read_manifest(run)["status"] == "running"
        with pytest.raises(StoreError, match="another process"), Journal(run):
            pass


def test_writing_follows_no_link(run, tmp_path, monkeypatch):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    monkeypatch.setattr(folders.secrets, "token_hex", lambda _: "guessed")
    (run / ".report.md.guessed").symlink_to(victim)
    with pytest.raises(StoreError, match="exists"):
        folders.write(run / "report.md", "theirs")
    (run / "samples.jsonl").unlink()
    (run / "samples.jsonl").symlink_to(victim)
    with pytest.raises(StoreError, match="samples"), Journal(run):
        pass
    assert victim.read_text() == "mine"


def test_a_rename_is_forced_to_disk(run, monkeypatch):
    synced = []
    monkeypatch.setattr(folders.os, "fsync", lambda fd: synced.append(Path(f"/proc/self/fd/{fd}").readlink()))
    folders.write(run / "report.md", "text")
    assert len(synced) == 2 and synced[1] == run.resolve()


def test_a_full_disk_tears_nothing(small_disk):
    run = folders.create(small_disk, PLAN, b"", {})
    (small_disk / "filler").write_bytes(b"x" * (shutil.disk_usage(small_disk).free - 8192))
    with Journal(run) as journal:
        with pytest.raises(StoreError, match=r"the disk is full; measured cases are kept.*collbench resume"):
            for _ in range(100):
                journal.append(line(1))
        kept = len(folders.read(run).samples)
        assert 0 < kept < 100
        (small_disk / "filler").unlink()
        journal.append(line(2))
    read = folders.read(run)
    assert len(read.samples) == kept + 1 and not sentences(read.notices)
    with pytest.raises(StoreError, match="the disk is full"):
        folders.write(run / "report.md", b"x" * 100_000)
    assert not [path for path in run.iterdir() if path.name.startswith(".")]


def test_settings_and_options_of_another_operation_are_refused():
    plan = Plan("p", (), (), 1, Settings(SAMPLING, 1, 60.0, 0))
    written = encoding.plan_to_json(plan)
    assert encoding.plan_from_json(written) == plan
    for op, other in (("all_reduce", "replay"), ("training_step", "")):
        written["settings"]["own"] = {op: {"operation": other}}
        with pytest.raises(ValueError, match=f"settings.own: '{op}' does not have these settings"):
            encoding.plan_from_json(written)
    data = json.loads(line())
    data["case"]["own"] = {"operation": "training_step", "model": "os:system"}
    with pytest.raises(ValueError, match="own: options of training_step in a case of all_reduce"):
        encoding.samples_from_line(json.dumps(data).encode())
