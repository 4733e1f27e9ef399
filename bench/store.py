"""The results folder: its only reader and writer. The format is described in docs/results-format.md.

In: a Plan, facts as they are measured, finished documents. Out: a `Run`, or a list of folders.
`samples.jsonl` is appended and fsynced line by line and never rewritten; all else is written whole or
not at all (a temporary file, then a rename). One process at a time holds a run's journal.
"""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import os
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from bench.errors import StoreError
from bench.records import Block, Case, Failure, Fault, Json, Plan, Run, Samples, Sampling, Skip, Timings, Usage

if TYPE_CHECKING:
    from bench.records import Integers

# Raised when a reader of the old number would misread what is written. History: 1 first version.
SCHEMA = 1

MANIFEST, CONFIG, PLAN, ENVIRONMENT, SAMPLES = (
    "manifest.json",
    "config.yaml",
    "plan.json",
    "environment.json",
    "samples.jsonl",
)
LOG = "log.txt"

T = TypeVar("T")


# ── writing ──────────────────────────────────────────────────────────────────────────────────────
def create(root: Path, plan: Plan, config: bytes, facts: Json) -> Path:
    """Make `root/<utc>-<name>/` with everything but samples in it. Never touches an existing folder.

    facts: what the manifest holds beside schema, times and status (command line, version, commit).
    """
    now = datetime.now(UTC)
    path = _new_folder(root, f"{now:%Y%m%dT%H%M%SZ}-{plan.name}")
    (path / LOG).touch()
    write(path / CONFIG, config)
    write(path / PLAN, _json_text(_plan_to_json(plan)))
    write(path / ENVIRONMENT, _json_text([]))
    write(path / SAMPLES, b"")
    manifest = {"schema": SCHEMA, "name": plan.name, **facts, "started": now.isoformat(timespec="seconds")}
    write(path / MANIFEST, _json_text({**manifest, "finished": None, "status": "running"}))
    return path


def _new_folder(root: Path, name: str) -> Path:
    for suffix in ["", *(f"-{count}" for count in range(2, 100))]:
        path = root / (name + suffix)
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue  # another run began in the same second
        except OSError as error:
            raise StoreError(f"{path}: {_why(error)}") from None
        return path
    raise StoreError(f"{root / name}: a hundred runs of this name in one second")


def write(path: Path, content: bytes | str) -> None:
    """Write a file whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StoreError(f"{path}: {_why(error)}") from None


def update_manifest(path: Path, **changes: Any) -> None:
    """Change keys of a run's manifest."""
    write(path / MANIFEST, _json_text({**_read_json(path / MANIFEST, dict), **changes}))


def write_environment(path: Path, sessions: list[Json]) -> None:
    """What was read of the machine, one entry a session (the first run, and each resume)."""
    write(path / ENVIRONMENT, _json_text(sessions))


class Journal:
    """`samples.jsonl`, opened for appending and locked: a second writer gets a StoreError.

    Opening drops a torn last line, which only a crash while writing leaves behind.
    """

    def __init__(self, path: Path) -> None:
        self._path = path / SAMPLES
        self._written = 0

    def __enter__(self) -> Journal:
        try:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise StoreError(f"{self._path}: {_why(error)}") from None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise StoreError(f"{self._path.parent}: another process is measuring into this run") from None
        content = self._path.read_bytes()
        os.ftruncate(self._fd, content.rfind(b"\n") + 1)
        os.lseek(self._fd, 0, os.SEEK_END)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        os.close(self._fd)

    def append(self, line: bytes) -> None:
        """Write one line (no newline in it) and force it to disk; on failure nothing of it remains."""
        end = os.lseek(self._fd, 0, os.SEEK_CUR)
        rest = memoryview(line + b"\n")
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
            os.fsync(self._fd)
        except OSError as error:
            os.ftruncate(self._fd, end)
            os.lseek(self._fd, end, os.SEEK_SET)
            raise StoreError(
                f"{self._path}: {_why(error)}; what was measured is kept; go on with: run --resume {self._path.parent}"
            ) from None


def is_being_written(path: Path) -> bool:
    """Whether a living process holds the run's journal."""
    try:
        fd = os.open(path / SAMPLES, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


# ── reading ──────────────────────────────────────────────────────────────────────────────────────
def read(path: Path) -> Run:
    """A run folder, whatever state it is in. Raises StoreError with one line that says what is wrong."""
    manifest = read_manifest(path)
    plan = _read_json(path / PLAN, dict)
    samples, warnings = _read_samples(path / SAMPLES)
    return Run(
        path=path,
        manifest=manifest,
        plan=_understood(path / PLAN, lambda: _plan_from_json(plan)),
        environment=_read_json(path / ENVIRONMENT, list),
        samples=samples,
        warnings=warnings,
    )


def read_manifest(path: Path) -> Json:
    """The manifest, with `status` corrected where the process that ran is gone."""
    if not path.is_dir():
        raise StoreError(f"{path}: no such folder")
    if not (path / MANIFEST).is_file():
        raise StoreError(f"{path}: not a run folder (it has no {MANIFEST})")
    manifest = _read_json(path / MANIFEST, dict)
    schema = manifest.get("schema")
    if not isinstance(schema, int):
        raise StoreError(f"{path / MANIFEST}: damaged: no schema number")
    if schema > SCHEMA:
        raise StoreError(
            f"{path}: written with schema {schema}, but this version reads up to {SCHEMA}: update CollBench"
        )
    if manifest.get("status") == "running" and not is_being_written(path):
        return {**manifest, "status": "interrupted"}
    return dict(manifest)


def newest(root: Path) -> Path:
    """The run that was started last."""
    folders = list(runs(root))
    if not folders:
        raise StoreError(f"{root}: no runs here yet; make one with: run configs/gloo.yaml")
    return folders[-1]


def runs(root: Path) -> Iterator[Path]:
    """All run folders below `root`, oldest first (the names begin with the UTC time)."""
    if root.is_dir():
        yield from sorted(path for path in root.iterdir() if (path / MANIFEST).is_file())


def find(root: Path, run: str | None) -> Path:
    """A run by path, by name below `root`, by the end of its name (then the newest such); the newest for None."""
    if run is None:
        return newest(root)
    if Path(run).is_dir():
        return Path(run)
    pattern = re.compile(rf"(.*-)?{re.escape(run)}(-\d+)?")
    matches = [path for path in runs(root) if pattern.fullmatch(path.name)]
    if not matches:
        raise StoreError(f"{run}: no such run, neither as a folder nor below {root} (see: list)")
    return matches[-1]


def _read_samples(path: Path) -> tuple[list[Samples], tuple[str, ...]]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StoreError(f"{path}: {_why(error)}") from None
    whole, _, torn = content.rpartition(b"\n")
    lines = whole.split(b"\n") if whole else []
    samples = [_sample_of_line(path, number, line) for number, line in enumerate(lines, start=1)]
    warnings = ("the last line of samples.jsonl was torn by a crash; that case counts as not measured",) if torn else ()
    return samples, warnings


def _sample_of_line(path: Path, number: int, line: bytes) -> Samples:
    return _understood(path, lambda: samples_from_json(json.loads(line)), f" line {number}:")


def _understood(path: Path, make: Callable[[], T], where: str = "") -> T:
    try:
        return make()
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        what = "is missing" if isinstance(error, KeyError) else ""
        reason = " ".join(f"{error} {what}".split())[:120]
        raise StoreError(f"{path}:{where} damaged: {reason}") from None


def _read_json(path: Path, kind: type[T]) -> T:
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise StoreError(f"{path}: {_why(error)}") from None
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path}: damaged: {str(error)[:120]}") from None
    if not isinstance(value, kind):
        raise StoreError(f"{path}: damaged: expected a JSON {'object' if kind is dict else 'list'}")
    return value


def _why(error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return "the disk is full"
    return (error.strerror or str(error)).lower()


def _json_text(value: Any) -> bytes:
    text = json.dumps(value, indent=1, ensure_ascii=False)
    # Lists of plain numbers on one line: a plan's order stays readable.
    return re.sub(r"\[\s+([-0-9.,\s]+?)\s+\]", lambda m: "[" + " ".join(m[1].split()) + "]", text).encode() + b"\n"


# ── records ↔ JSON ───────────────────────────────────────────────────────────────────────────────
def _plan_to_json(plan: Plan) -> Json:
    cases = plan.cases
    index = {case.key: number for number, case in enumerate(cases)}
    blocks = [
        {
            "backend": block.backend,
            "world_size": block.world_size,
            "launch": block.launch,
            "cases": [index[case.key] for case in block.cases],
        }
        for block in plan.blocks
    ]
    flat = dataclasses.asdict(plan)
    return {
        **{
            key: flat[key]
            for key in (
                "name",
                "launches",
                "seed",
                "timeout_s",
                "pool_bytes",
                "sampling",
                "faults",
                "budget_s",
                "link_bytes_per_s",
            )
        },
        "cases": [dataclasses.asdict(case) for case in cases],
        "skips": flat["skips"],
        "order": blocks,
    }


def _plan_from_json(data: Json) -> Plan:
    cases = [Case(**case) for case in data["cases"]]
    return Plan(
        name=data["name"],
        blocks=tuple(
            Block(b["backend"], b["world_size"], b["launch"], tuple(cases[i] for i in b["cases"]))
            for b in data["order"]
        ),
        skips=tuple(Skip(Case(**skip["case"]), skip["reason"]) for skip in data["skips"]),
        launches=data["launches"],
        seed=data["seed"],
        sampling=Sampling(**data["sampling"]),
        timeout_s=data["timeout_s"],
        pool_bytes=data["pool_bytes"],
        faults=tuple(Fault(**fault) for fault in data["faults"]),
        budget_s=data.get("budget_s"),
        link_bytes_per_s=data.get("link_bytes_per_s"),
    )


def samples_to_line(samples: Samples) -> bytes:
    """One line of `samples.jsonl`, without its newline. Arrays are written rank by rank."""
    data = {
        "case": dataclasses.asdict(samples.case),
        "launch": samples.launch,
        "unix_s": samples.unix_s,
        "base_ns": samples.base_ns,
        "stopped_by": samples.stopped_by,
        "failure": dataclasses.asdict(samples.failure) if samples.failure else None,
        "usage": dataclasses.asdict(samples.usage) if samples.usage else None,
        "warmup": _timings_to_json(samples.warmup),
        "timed": _timings_to_json(samples.timed),
    }
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode()


def samples_from_json(data: Json) -> Samples:
    """The inverse of `samples_to_line`; raises ValueError, KeyError or TypeError on anything else."""
    samples = Samples(
        case=Case(**data["case"]),
        launch=data["launch"],
        unix_s=data["unix_s"],
        base_ns=data["base_ns"],
        warmup=_timings_from_json(data["warmup"]),
        timed=_timings_from_json(data["timed"]),
        stopped_by=data["stopped_by"],
        usage=Usage(**data["usage"]) if data["usage"] else None,
        failure=Failure(**data["failure"]) if data["failure"] else None,
    )
    if samples.failure is None and samples.timed is None:
        raise ValueError("neither timings nor a failure")
    for timings in (samples.warmup, samples.timed):
        if timings is not None and timings.duration_ns.shape[1] != samples.case.world_size:
            raise ValueError(f"{timings.duration_ns.shape[1]} ranks where {samples.case.world_size} were expected")
    return samples


def _timings_to_json(timings: Timings | None) -> Json | None:
    if timings is None:
        return None
    arrays = {"start_ns": timings.start_ns, "duration_ns": timings.duration_ns, "host_ns": timings.host_ns}
    extra = {} if timings.calls == 1 else {"calls": timings.calls}
    return {**{name: array.T.tolist() for name, array in arrays.items() if array is not None}, **extra}


def _timings_from_json(data: Json | None) -> Timings | None:
    if data is None:
        return None
    start, duration = _array(data["start_ns"]), _array(data["duration_ns"])
    host = _array(data["host_ns"]) if "host_ns" in data else None
    if any(other.shape != start.shape for other in (duration, host) if other is not None):
        raise ValueError("arrays of different lengths")
    return Timings(start, duration, host, data.get("calls", 1))


def _array(ranks: list[list[int]]) -> Integers:
    import numpy as np  # here, so that `list` and `plan` start without it

    array = np.array(ranks, dtype=np.int64)
    if array.ndim != 2:
        raise ValueError("expected one list of times a rank")
    return array.T
