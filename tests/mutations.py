"""Feed mutated files to the verbs that read such files: how do the verbs end, and what do they cost?

    .venv/bin/python tests/mutations.py 500 osu     500 inputs of the kind `osu`

Input 0 of a kind is the good file; input k is the same in every run. The program prints JSON: the number of
commands per exit code; the failures, which are a traceback, more than LONGEST_S seconds, a printed character that a
terminal obeys, or a refusal of the good file; the longest time in seconds and the peak of memory.
"""

# ruff: noqa: E402
import contextlib
import copy
import io
import json
import os
import pickle
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import foreign
from collbench.cli.app import call
from collbench.model.errors import UNEXPECTED
from collbench.model.visible import visible
from collbench.store import folders

# A mutated input is small: a command that takes longer, even on a busy machine, hangs.
LONGEST_S, MOST_MIB = 60, 1024
REFUSED = 2
# Pictures are drawn for every input whose number is a multiple of this number.
DRAWN = 4
EXAMPLE = ROOT / "docs" / "example" / "before"
REPLAY = "backends: [gloo]\nreplay: {{recording: [{}]}}\n"
LOOK = ("replay", "--look", "--no-plots")
ODD = (
    None, True, 0, -1, 3, 10**9, 2**31, 2**63, -(2**70), 10**400, 1e-9, 1e308, float("nan"), float("inf"), "", "x",
    "nan", "-1", "\x1b[2J\u202e\ud800", "<img src=http://a.example>|`", "=1+1", "a/b", "x" * 5000, [], {}, [[]], [0],
    {"x": 1}, ["x", 1, None], [[1, 2], [3]],
)  # fmt: skip
PIECES = (
    b"\n", b"\r", b"\0", b"\x1b[31m", b"9" * 60, b"-1", b"1e999", b"nan", b" 0 ", b"\xff\xfe", b'"', b"{", b"}", b"[",
    b"]", b":", b"- ", b"*a", b"&a", b"!!python/object:os.system", b"1000000000", b"null", b"[" * 2000, b"{x: " * 200,
)  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """A kind of file: the content of a good file, the name to write it under, and the commands that read it."""

    content: bytes
    name: str
    commands: tuple[tuple[str, ...], ...]


def recordings() -> dict[str, Kind]:
    import test_traces as samples

    events = [samples.param_event(100 * number, "allreduce") for number in range(4)]
    events += [samples.kernel(100 * number + 50, 40, 100 * number) for number in range(4)]
    kineto = samples.kineto(events, pg_config=[{"pg_name": "7", "ranks": [1, 3]}])
    # Content, name, number of ranks.
    contents = {
        "kineto": (json.dumps(kineto).encode(), "rank1.json", 4),
        "gloo kineto": (json.dumps(samples.gloo_calls(4)).encode(), "rank0.json", 2),
        "execution trace": (json.dumps(samples.execution_trace()).encode(), "et_rank3.json", 4),
        "flight recorder": (json.dumps(samples.recorder(duration_ms=1.5)).encode(), "fr_0.json", 6),
        "flight pickle": (pickle.dumps(samples.recorder(), protocol=2), "dump_0", 6),
        "inspector": ((json.dumps(samples.INSPECTED) + "\n").encode() * 3, "i.json", 8),
        "call list": ((ROOT / "docs/example/training.calls.jsonl").read_bytes(), "job.calls.jsonl", 8),
    }
    return {
        kind: Kind(content, name, ((*LOOK, name), ("plan", "replay.yaml", "--set", f"world_sizes=[{ranks}]")))
        for kind, (content, name, ranks) in contents.items()
    }


def kinds() -> dict[str, Kind]:
    imported = {
        "nccl-tests text": ("nccl-tests", foreign.nccl(), "all_reduce.txt"),
        "nccl-tests json": ("nccl-tests", foreign.nccl_json(), "all_reduce.json"),
        "osu": ("osu", "# mpirun -n 4 osu_allreduce\n" + foreign.osu(full=True), "osu_allreduce.txt"),
    }
    table = b"expect:\n  - {operation: all_reduce, backend: gloo, world_size: 2, busbw: 0.1 GB/s, source: x}\n"
    in_run = ("report", "run"), ("diagnose", "run"), ("compare", "run", "good"), ("list", "runs")
    return {
        **recordings(),
        # The report reads the imported run again: an impossible case would end it.
        **{
            kind: Kind(text.encode(), name, (("import", tool, name), ("report",)))
            for kind, (tool, text, name) in imported.items()
        },
        "configuration": Kind((ROOT / "configs" / "everything.yaml").read_bytes(), "x.yaml", (("plan", "x.yaml"),)),
        "training config": Kind((ROOT / "configs" / "ddp.yaml").read_bytes(), "x.yaml", (("plan", "x.yaml"),)),
        "expected table": Kind(table, "table.yaml", (("check", "table.yaml", "good"),)),
        **{
            file: Kind(good_run(file), f"run/{file}", in_run)
            for file in (folders.MANIFEST, folders.PLAN, folders.SAMPLES, folders.ENVIRONMENT)
        },
    }


def good_run(file: str) -> bytes:
    """Return a file of the example run, with few samples: reports of many samples take long."""
    content = (EXAMPLE / file).read_bytes()
    return b"".join(content.splitlines(keepends=True)[::24]) if file == folders.SAMPLES else content


# ── mutations ────────────────────────────────────────────────────────────────────────────────────
def mutated(content: bytes, name: str, chance: random.Random) -> bytes:
    """Return the file with a few values, words or bytes replaced, or cut off."""
    if name.endswith((".json", ".jsonl")) and chance.random() < 0.7:
        return in_values(content, chance)
    if name.endswith(".yaml") and chance.random() < 0.6:
        return in_lines(content, chance)
    data = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data) + 1)
        data[at : at + chance.choice((0, 1, 3, 30))] = chance.choice(PIECES)
    return bytes(data[: chance.randrange(len(data))] if chance.random() < 0.15 else data)


def in_values(content: bytes, chance: random.Random) -> bytes:
    """Return a JSON document, or lines of JSON, with values replaced, deleted or repeated."""
    lines = content.splitlines() if content.count(b"\n{") else [content]
    at = chance.randrange(len(lines))
    document = json.loads(lines[at])
    for _ in range(chance.randint(1, 3)):
        inner, key = chance.choice(list(places(document)) or [(None, None)])
        action = chance.random()
        if inner is None:
            document = copy.deepcopy(chance.choice(ODD))
        elif action < 0.15:
            del inner[key]
        elif action < 0.25 and isinstance(inner, list):
            inner[:] = inner * chance.choice((2, 50))
        else:
            inner[key] = copy.deepcopy(chance.choice(ODD))
    lines[at] = json.dumps(document).encode()
    return b"\n".join(lines) + b"\n"


def in_lines(content: bytes, chance: random.Random) -> bytes:
    """Return a YAML file with the values of keys replaced."""
    lines = content.split(b"\n")
    keys = [number for number, line in enumerate(lines) if b": " in line and not line.lstrip().startswith(b"#")]
    for number in chance.sample(keys, min(len(keys), chance.randint(1, 2))):
        lines[number] = lines[number].partition(b": ")[0] + b": " + json.dumps(chance.choice(ODD)).encode()
    return b"\n".join(lines)


def places(value: object):
    """Yield the container and the key of every value in a tree."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in list(inner):
        yield value, key
        yield from places(part)


# ── one kind ─────────────────────────────────────────────────────────────────────────────────────
class HangError(BaseException):
    """Raised in a command that hangs; a BaseException, so that no code of the command catches it."""


def examine(kind: Kind, title: str, number: int) -> dict:
    """Return how the commands on all inputs ended. A failure is the input's number, the command and the problem."""
    codes: Counter[str] = Counter()
    failures, longest_s = [], 0.0
    signal.signal(signal.SIGALRM, hang)
    os.environ["COLUMNS"] = "100"
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        prepare(kind)
        for place in range(number):
            chance = random.Random(f"{title} {place}")
            Path(kind.name).write_bytes(mutated(kind.content, kind.name, chance) if place else kind.content)
            for command in kind.commands:
                # Drawing takes longer than everything else: a few inputs show whether it survives them.
                undrawn = ("--no-plots",) if command[0] == "report" and place % DRAWN else ()
                code, problem, seconds = ended((*command, *undrawn))
                if not place and code == REFUSED:
                    problem = "the good file is refused"
                codes[str(code)] += 1
                longest_s = max(longest_s, seconds)
                if problem:
                    failures.append([place, " ".join(command), problem])
            shutil.rmtree("results", ignore_errors=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return {"codes": dict(codes), "failures": failures, "longest_s": longest_s, "peak_mib": peak}


def prepare(kind: Kind) -> None:
    """Write the files that the commands need in addition to the mutated file."""
    for name in ("good", "run"):
        Path(name).mkdir()
        for file in EXAMPLE.iterdir():
            (Path(name) / file.name).write_bytes(good_run(file.name))
    Path("replay.yaml").write_text(REPLAY.format(kind.name))


def ended(command: tuple[str, ...]) -> tuple[int | None, str, float]:
    """Run a command; return its exit code, the problem (empty: none) and the seconds that it took."""
    out, began = io.StringIO(), time.monotonic()
    signal.alarm(LONGEST_S)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            code: int | None = call(command)
        problem = f"an internal error: {out.getvalue()[-500:]}" if code == UNEXPECTED else ""
    except HangError:
        code, problem = None, "hangs: " + "".join(traceback.format_exc().splitlines(True)[-12:])
    except BaseException:
        code, problem = None, "".join(traceback.format_exc().splitlines(True)[-7:])
    finally:
        signal.alarm(0)
    text = out.getvalue()
    if not problem and visible(text) != text:
        problem = "printed what a terminal obeys"
    return code, problem, time.monotonic() - began


def hang(*_: object) -> None:
    raise HangError


# ── in a process of its own ──────────────────────────────────────────────────────────────────────
def examined(number: int, *titles: str) -> dict[str, dict]:
    """Examine the inputs of some kinds in a separate process, so that its peak of memory is caused by them only."""
    command = [sys.executable, __file__, str(number), *titles]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


if __name__ == "__main__":
    number, *titles = sys.argv[1:]
    print(json.dumps({title: examine(kinds()[title], title, int(number)) for title in titles}))
