"""Foreign or damaged files are read, or refused in one line: no traceback, no hang, nothing that a terminal obeys."""

import contextlib
import io
import json
import pickle
import random
import shutil

import pytest

import foreign
import test_traces as recordings
from collbench.cli.app import call
from collbench.model.errors import UNEXPECTED
from collbench.model.visible import visible
from collbench.store import folders
from conftest import ROOT, ended_after
from mutations import mutated

# Input 0 of a kind is the good file; input k is the same in every run. A command that takes longer than a minute hangs.
FEW, LONGEST_S, REFUSED = 5, 60, 2
EXAMPLE = ROOT / "docs" / "example" / "before"


def kineto() -> dict:
    events = [recordings.param_event(100 * number, "allreduce") for number in range(4)]
    events += [recordings.kernel(100 * number + 50, 40, 100 * number) for number in range(4)]
    return recordings.kineto(events, pg_config=[{"pg_name": "7", "ranks": [1, 3]}])


def kinds() -> dict:
    """Return the kinds of files: name of the good file, its content, and the commands that read it."""
    recorded = {
        "rank1.json": (4, kineto()),
        "rank0.json": (2, recordings.gloo_calls(4)),
        "et_rank3.json": (4, recordings.execution_trace()),
        "fr_0.json": (6, recordings.recorder(duration_ms=1.5)),
        "dump_0": (6, pickle.dumps(recordings.recorder(), protocol=2)),
        "i.json": (8, (json.dumps(recordings.INSPECTED) + "\n").encode() * 3),
        "job.calls.jsonl": (8, (ROOT / "docs/example/training.calls.jsonl").read_bytes()),
    }
    imported = {
        "nccl.txt": ("nccl-tests", foreign.nccl()),
        "nccl.json": ("nccl-tests", foreign.nccl_json()),
        "osu.txt": ("osu", "# mpirun -n 4 osu_allreduce\n" + foreign.osu(full=True)),
    }
    table = b"expect:\n  - {operation: all_reduce, backend: gloo, world_size: 2, busbw: 0.1 GB/s, source: x}\n"
    in_run = ("report", "run"), ("compare", "run", "good")
    run_files = (folders.MANIFEST, folders.PLAN, folders.SAMPLES, folders.ENVIRONMENT)
    replayed = [("replay", "--look", "--no-plots"), ("plan", "replay.yaml", "--set")]
    return {
        **{
            name: (
                content if isinstance(content, bytes) else json.dumps(content).encode(),
                ((*replayed[0], name), (*replayed[1], f"world_sizes=[{ranks}]")),
            )
            for name, (ranks, content) in recorded.items()
        },
        # The report reads the imported run again: an impossible case would end it.
        **{name: (text.encode(), (("import", tool, name), ("report",))) for name, (tool, text) in imported.items()},
        "everything.yaml": ((ROOT / "configs/everything.yaml").read_bytes(), (("plan", "everything.yaml"),)),
        "ddp.yaml": ((ROOT / "configs/ddp.yaml").read_bytes(), (("plan", "ddp.yaml"),)),
        "table.yaml": (table, (("check", "table.yaml", "good"),)),
        **{f"run/{file}": (good_run(file), in_run) for file in run_files},
    }


def good_run(file: str) -> bytes:
    """Return a file of the example run, with few samples: reports of many samples take long."""
    content = (EXAMPLE / file).read_bytes()
    return b"".join(content.splitlines(keepends=True)[::24]) if file == folders.SAMPLES else content


# ── the commands ─────────────────────────────────────────────────────────────────────────────────
@pytest.mark.slow
@pytest.mark.parametrize("name", kinds())
def test_a_few_mutated_files_of_each_kind(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    for folder in ("good", "run"):
        (tmp_path / folder).mkdir()
        for file in EXAMPLE.iterdir():
            (tmp_path / folder / file.name).write_bytes(good_run(file.name))
    (tmp_path / "replay.yaml").write_text(f"backends: [gloo]\nreplay: {{recording: [{name}]}}\n")
    content, commands = kinds()[name]
    for number in range(FEW):
        chance = random.Random(f"{name} {number}")
        (tmp_path / name).write_bytes(mutated(content, name, chance) if number else content)
        for command in commands:
            # Drawing takes longer than everything else: it is tried with the last input.
            undrawn = ("--no-plots",) if command[0] == "report" and number < FEW - 1 else ()
            out = io.StringIO()
            with ended_after(LONGEST_S), contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
                code = call((*command, *undrawn))
            assert code != UNEXPECTED and (number or code != REFUSED), f"{number}: {command}: {out.getvalue()[-500:]}"
            assert visible(out.getvalue()) == out.getvalue(), f"{number}: {command} printed what a terminal obeys"
        shutil.rmtree("results", ignore_errors=True)
