"""Read and write results folders (their format: docs/develop/results-format.md).

In: a plan, samples as they are measured, finished documents. Out: a run, or a list of folders. `encoding` converts
plans and samples to JSON and back. No other module writes these files, except log.txt, to which ranks and launchers
append. `samples.jsonl` is appended and synced line by line and never rewritten; every other file is written whole or
not at all (a temporary file of a new name, then a rename, then the folder is synced). Only one process at a time can
open the `Journal` of a run.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import errno
import functools
import gc
import io
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, BinaryIO, TypeVar

from collbench import __version__
from collbench.model.errors import StoreError, damaged_json, reason_of
from collbench.model.facts import Session
from collbench.model.notices import Kind, Notice
from collbench.model.pages import at_hand
from collbench.model.records import AbState, Json, Plan, Run, Samples, Side
from collbench.store import locks

# Increased when a reader of the previous schema would misread the files. Runs of any other schema are refused.
SCHEMA = 7

MANIFEST, CONFIG, PLAN, ENVIRONMENT = "manifest.json", "config.yaml", "plan.json", "environment.json"
SAMPLES, LOG, SUMMARY, REPORT = "samples.jsonl", "log.txt", "summary.csv", "report.md"
# A run of two sides (verb `ab`) has these files in addition, and lines of samples.jsonl begin with their side. RUN:a
# and RUN:b name the sides; their documents are in folders of that name.
SIDES = ("a", "b")
CONFIG_B, PLAN_B = "config-b.yaml", "plan-b.json"
# Largest number of damaged lines that are named one by one.
MOST_DAMAGED = 5

T = TypeVar("T")


# ── writing ──────────────────────────────────────────────────────────────────────────────────────
def create(
    root: Path,
    plan: Plan,
    config: bytes,
    facts: Json,
    files: Mapping[str, str] = MappingProxyType({}),
    output: Path | None = None,
) -> Path:
    """Make `root/<utc>-<name>/`, or `output`, with all files of a run and no samples. Never touches an existing run.

    output: must not exist, or be an empty folder; the manifest then names it, too. facts: content of the manifest in
    addition to schema, name, version, times and status, such as the command line. files: name → text of
    further files of the folder.
    """
    from collbench.store import encoding  # here: it loads pydantic, which `list` does not need

    now = datetime.now(UTC)
    if output is None:
        path = _new_folder(root / f"{now:%Y%m%dT%H%M%SZ}-{plan.name}")
    else:
        path, facts = output, {**facts, "output": str(output.resolve())}
        make_folder(path)
        if any(path.iterdir()):
            raise StoreError(f"--output {path}: it is not empty; name a new folder")
    (path / LOG).touch()
    write(path / CONFIG, config)
    write(path / PLAN, _json_text(encoding.plan_to_json(plan)))
    for name, text in files.items():
        write(path / name, text)
    write(path / ENVIRONMENT, _json_text([]))
    write(path / SAMPLES, b"")
    manifest = {"schema": SCHEMA, "name": plan.name, "collbench": __version__, **facts}
    started = now.isoformat(timespec="seconds")
    write(path / MANIFEST, _json_text({**manifest, "started": started, "finished": None, "status": "running"}))
    return path


def _new_folder(path: Path) -> Path:
    """Make a folder of this name, with a number at its end if another run began in the same second."""
    if path.parent.is_symlink() and not path.parent.exists():
        raise StoreError(
            f"{path.parent}: a link to {path.parent.readlink()}, which does not exist: make it, or mount it"
        )
    for suffix in ["", *(f"-{count}" for count in range(2, 100))]:
        numbered = path.with_name(path.name + suffix)
        with naming(numbered), contextlib.suppress(FileExistsError):
            numbered.mkdir(parents=True)
            return numbered
    raise StoreError(f"{path}: a hundred runs of this name in one second")


def create_sides(root: Path, plans: tuple[Plan, Plan], configs: tuple[bytes, bytes], facts: Json) -> Path:
    """Make the folder of a run of two sides, as `create` does for other runs."""
    from collbench.store import encoding  # as above

    path = create(root, plans[0], configs[0], facts)
    write(path / CONFIG_B, configs[1])
    write(path / PLAN_B, _json_text(encoding.plan_to_json(plans[1])))
    for side in SIDES:
        (path / side).mkdir()
    return path


def with_side(line: bytes, side: str) -> bytes:
    """Return a line of samples.jsonl with its side."""
    return _start_of(side) + line[1:]


def _start_of(side: str) -> bytes:
    return f'{{"side":"{side}",'.encode()


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn an error of the operating system into a StoreError that names `path`."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{path}: {reason_of(error)}") from None


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, if there is none. Raises StoreError."""
    with naming(path):
        path.mkdir(parents=True, exist_ok=True)


def write(path: Path, content: bytes | str) -> None:
    """Write a file whole or not at all."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with temporary.open("xb") as file:  # a file or link that is there already is not followed
            file.write(content.encode(errors="backslashreplace") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StoreError(f"{path}: {reason_of(error)}") from None


def _sync_folder(path: Path) -> None:
    """Force the list of a folder's files to disk: a power failure could otherwise undo a rename."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # some network file systems refuse
            os.fsync(folder)
    finally:
        os.close(folder)


def update_manifest(path: Path, **changes: Any) -> None:
    """Change keys of a run's manifest."""
    write(path / MANIFEST, _json_text({**_read_json(path / MANIFEST, dict), **changes}))


def write_environment(path: Path, sessions: Sequence[Mapping[str, Any]]) -> None:
    """Write the facts about the machine, one entry per session (the first run, and each resume)."""
    write(path / ENVIRONMENT, _json_text(sessions))


def discard(path: Path) -> None:
    """Remove the folder of a run that is incomplete and can be made again, such as an import."""
    shutil.rmtree(path, ignore_errors=True)


def is_being_written(path: Path) -> bool:
    """Return whether a living process has the run's journal open; False if the file system has no locks."""
    with contextlib.suppress(StoreError), open(open_plain(path / SAMPLES, os.O_RDONLY), "rb") as file:
        return locks.shared(file.fileno()) is False
    return False


def open_plain(path: Path, flags: int) -> int:
    """Open a file that is neither a link nor a pipe or device, and return its descriptor. Raises StoreError.

    A run folder may have come from somebody else: text that is appended to a link would go into a file of the user.
    """
    try:
        # Without O_NONBLOCK, opening a pipe waits for its other end.
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise StoreError(f"{path}: {'a link' if error.errno == errno.ELOOP else reason_of(error)}") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise StoreError(f"{path}: not a plain file")
    return fd


def appending(path: Path) -> BinaryIO:
    """Open an existing plain file for appending. Raises StoreError."""
    return open(open_plain(path, os.O_WRONLY | os.O_APPEND), "ab")


# ── samples, while they are measured ─────────────────────────────────────────────────────────────
class Journal:
    """`samples.jsonl`, opened for appending and locked: a second writer gets a StoreError.

    Opening it drops an incomplete last line, left by a crash while writing. log.txt, into which ranks write meanwhile,
    must be a plain file, too.
    """

    def __init__(self, path: Path) -> None:
        self._path = path / SAMPLES

    def __enter__(self) -> Journal:
        run = self._path.parent
        os.close(open_plain(run / LOG, os.O_RDWR))
        self._fd = open_plain(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        try:
            taken = locks.exclusive(self._fd)
            if taken is False:
                raise StoreError(f"{run}: another process is measuring into this run")
            self.locked = bool(taken)  # False if the file system has no locks
            content = self._path.read_bytes()
            os.ftruncate(self._fd, content.rfind(b"\n") + 1)
        except BaseException:
            os.close(self._fd)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        os.close(self._fd)

    def append(self, line: bytes) -> None:
        """Write one line (or several, joined by newlines) and force it to disk. After a failure none of it remains."""
        end = os.fstat(self._fd).st_size
        unwritten = memoryview(line + b"\n")
        try:
            while unwritten:
                unwritten = unwritten[os.write(self._fd, unwritten) :]
            os.fsync(self._fd)
        except OSError as error:
            os.ftruncate(self._fd, end)
            why, run = reason_of(error), self._path.parent
            raise StoreError(
                f"{self._path}: {why}; measured cases are kept; go on with: collbench resume {run}"
            ) from None


# ── reading ──────────────────────────────────────────────────────────────────────────────────────
UNPLANNED = Kind("unplanned", "{measurements:count measurement} of cases that the plan does not have: left out")


class RunFolder:
    """The folder of a run, or of one side of it (its folder `a` or `b`), finished or not.

    Each of its files is read once, when its content is first needed. A damaged or missing file then raises a StoreError
    of one line.
    """

    def __init__(self, path: Path) -> None:
        self._named = path
        self.path, self._side = _side_of(path)

    @functools.cached_property
    def manifest(self) -> Json:
        """Return the manifest, as `read_manifest` returns it."""
        return read_manifest(self.path)

    @property
    def has_sides(self) -> bool:
        """Return whether it is the folder of a run of two sides, and not of one side."""
        return "sides" in self.manifest and not self._side

    @functools.cached_property
    def sides(self) -> dict[str, Side]:
        """Return the request for each side; empty for a run that has no sides."""
        from collbench.store import encoding  # here: it loads pydantic, which `list` does not need

        if not self.has_sides:
            return {}
        with _naming_damage(f"{self.path / MANIFEST}: sides:"):
            return {side: encoding.side_from_json(self.manifest["sides"][side]) for side in SIDES}

    @functools.cached_property
    def ab(self) -> AbState:
        """Return the state of `ab`."""
        from collbench.store import encoding  # as above

        with _naming_damage(f"{self.path / MANIFEST}: ab:"):
            return encoding.validated(AbState, self.manifest.get("ab") or {})

    @functools.cached_property
    def plans(self) -> dict[str, Plan]:
        """Return the plans by side, or by "" for a run without sides. They have all launches that could be needed."""
        from collbench.store import encoding  # as above

        plans = {}
        for side in self._letters:
            file = self.path / (PLAN_B if side == SIDES[1] else PLAN)
            content = _read_json(file, dict)
            with _naming_damage(f"{file}:"):
                plans[side] = encoding.plan_from_json(content)
        return plans

    @functools.cached_property
    def runs(self) -> dict[str, Run]:
        """Return the runs by side, or by "" for a run without sides. The samples of both sides are in one file."""
        from collbench.store import encoding, facts  # as above

        if not (self.path / SAMPLES).exists():
            remedy = f"collbench resume {self.path} measures it"
            raise StoreError(f"{self.path}: it has no {SAMPLES}, so it contains no measurement: {remedy}")
        contents = _read_lines(self.path / SAMPLES, encoding.samples_from_line, self._letters)
        sessions = _read_json(self.path / ENVIRONMENT, list)
        with _naming_damage(f"{self.path / ENVIRONMENT}:"):
            environment = facts.environment_of(sessions)
        return {side: self._run(side, environment, *lines) for side, lines in contents.items()}

    @property
    def run(self) -> Run:
        """Return the run, or its side that the path names."""
        if self.has_sides:
            name = self._named.name
            raise StoreError(f"{self._named}: a run of two sides; name one of them: {name}:a or {name}:b")
        return self.runs[self._side]

    @property
    def _letters(self) -> Sequence[str]:
        return SIDES if self.has_sides else [self._side]

    def _run(self, side: str, environment: list[Session], lines: Iterable[Samples], notices: list[Notice]) -> Run:
        from collbench.store import facts  # as above

        with _naming_damage(f"{self.path / MANIFEST}:"):
            manifest = facts.manifest_of({**self.manifest, "side": side} if side else self.manifest)
            notices = [*facts.notices_of(manifest), *notices]
        plan = self.plans[side]
        # If a launch of cases that are compared round by round was interrupted while its lines were written, it was
        # measured again, and the later lines count.
        samples = list({(entry.case, entry.launch): entry for entry in lines}.values())
        planned = {case.key for case in plan.cases}
        if strange := sum(entry.case.key not in planned for entry in samples):
            samples = [entry for entry in samples if entry.case.key in planned]
            notices.append(UNPLANNED(measurements=strange))
        if side:
            environment = [session for session in environment if session.get("side") == side]
            # The launches that were made: `ab` plans more than it needs.
            launches = max((entry.launch for entry in samples), default=0)
            order = tuple(launch for launch in plan.order if launch.number <= launches)
            plan = dataclasses.replace(plan, order=order, launches=launches)
        return Run(self.path / side, manifest, plan, environment, samples, tuple(notices))


def read(path: Path) -> Run:
    """Read a run, or the side of a run that the path names; raises StoreError."""
    return RunFolder(path).run


def _side_of(path: Path) -> tuple[Path, str]:
    """Return the folder of a run and the side that a path names; the side is empty if the path names the run."""
    path = path.resolve() if path.name in {"", "."} else path
    if path.name in SIDES and not (path / MANIFEST).is_file() and (path.parent / MANIFEST).is_file():
        return path.parent, path.name
    return path, ""


def write_ab(path: Path, state: AbState) -> None:
    """Keep the state of `ab` in the manifest."""
    update_manifest(path, ab=dataclasses.asdict(state))


def read_manifest(path: Path) -> Json:
    """Return the manifest; its status "running" becomes "interrupted" if no process is writing."""
    if not (_side_of(path)[0] / MANIFEST).is_file():
        raise StoreError(f"{path}: {incomplete(path)}")
    path, side = _side_of(path)
    manifest = _read_json(path / MANIFEST, dict)
    schema = manifest.get("schema")
    if not isinstance(schema, int):
        raise StoreError(f"{path / MANIFEST}: damaged: no schema number")
    if schema != SCHEMA:
        raise StoreError(f"{path}: written with schema {schema}; this version of CollBench reads schema {SCHEMA}")
    if manifest.get("status") == "running" and not is_being_written(path):
        manifest["status"] = "interrupted"
    return {**manifest, "side": side} if side else manifest


def incomplete(path: Path) -> str:
    """Return the reason why a folder is not a run: the files that it lacks."""
    lacking = [name for name in (MANIFEST, PLAN, ENVIRONMENT, SAMPLES) if not (path / name).is_file()]
    others = {MANIFEST, PLAN, ENVIRONMENT} <= {*lacking} and any(path.glob("*.json*"))
    traces = f"; for traces: collbench replay --look {path}" * others
    return f"not a run folder: it has no {', '.join(lacking)}{traces}"


def read_summary(path: Path) -> list[dict[str, str]]:
    """Return the rows of summary.csv as the last report wrote them; none if there is no report yet."""
    try:
        return list(csv.DictReader(io.StringIO(_content(path / SUMMARY).decode(), newline="")))
    except (StoreError, UnicodeError, csv.Error):
        return []


def first_line(path: Path) -> str:
    """Return the first line of the last report; empty if there is none."""
    try:
        with open(open_plain(path / REPORT, os.O_RDONLY), encoding="utf-8") as file:
            return file.readline().strip()
    except (StoreError, UnicodeError):
        return ""


def newest(root: Path) -> Path:
    """Return the run that was started last."""
    folders = list(runs(root))
    if not folders:
        raise StoreError(f"{root}: no runs here yet; make one with: collbench run gloo")
    return folders[-1]


def strays(root: Path) -> list[Path]:
    """Return the folders below `root` that are not runs, because their manifest is missing."""
    return sorted({path for path in root.iterdir() if path.is_dir()} - {*runs(root)}) if root.is_dir() else []


def runs(root: Path) -> Iterator[Path]:
    """Yield all run folders below `root`, oldest first (the names begin with the UTC time)."""
    if root.is_dir():
        yield from sorted(path for path in root.iterdir() if (path / MANIFEST).is_file())


def find(root: Path, run: str | None) -> Path:
    """Find a run by path, by name below `root`, or by the end of its name (the newest match); None: the newest run.

    A name with `:a` or `:b` at its end is a side of a run.
    """
    if run is None:
        return newest(root)
    name, _, side = run.rpartition(":")
    if name and side in SIDES:
        path = find(root, name)
        if not RunFolder(path).has_sides:
            raise StoreError(f"{run}: {path} has no sides; only runs of the verb ab have")
        return path / side
    if (path := at_hand(Path(run))).is_dir():
        return path
    if "/" not in run and (root / run).is_dir():
        return root / run
    if path.is_file():
        raise StoreError(f"{run}: a file, not a run folder; for traces: collbench replay --look {run}")
    matches = [path for path in runs(root) if re.fullmatch(rf"(.*-)?{re.escape(run)}(-\d+)?", path.name)]
    if not matches:
        raise StoreError(f"{run}: no such run, neither as a folder nor below {root} (see: collbench list)")
    return matches[-1]


TORN_LINE = Kind(
    "torn-line",
    "the last line of samples.jsonl was torn by a crash; that case counts as not measured",
    "collbench resume measures it again",
)
DAMAGED_LINE = Kind("damaged-line", "{error}; that case counts as not measured", "collbench resume measures it again")
DAMAGED_LINES = Kind("damaged-lines", "{path}: {lines} further lines are damaged")


def _read_lines(
    path: Path, samples_from_line: Callable[[bytes], Samples], sides: Sequence[str]
) -> dict[str, tuple[list[Samples], list[Notice]]]:
    """Return, for each side, the samples in its lines, and a notice per damaged line. The side "" has all lines.

    Read line by line: a large run has hundreds of megabytes of text, and its arrays take a fraction of that.
    """
    contents: dict[str, tuple[list[Samples], list[Notice]]] = {side: ([], []) for side in sides}
    starts = {side: _start_of(side) if side else b"" for side in sides}
    # Garbage collection is off: searching the millions of short-lived integers for cycles takes a fifth of the time.
    gc.disable()
    try:
        with naming(path), open(open_plain(path, os.O_RDONLY), "rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    for _, damaged in contents.values():
                        damaged.append(TORN_LINE())
                    break
                for side, start in starts.items():
                    if line.startswith(start):
                        samples, damaged = contents[side]
                        try:
                            with _naming_damage(f"{path}: line {number}:"):
                                samples.append(samples_from_line(b"{" + line[len(start) :] if start else line))
                        except StoreError as error:
                            damaged.append(DAMAGED_LINE(error=str(error)))
    finally:
        gc.enable()
    for _, damaged in contents.values():
        if (more := len(damaged) - MOST_DAMAGED) > 0:
            damaged[MOST_DAMAGED:] = [DAMAGED_LINES(path=str(path), lines=more)]
    return contents


@contextlib.contextmanager
def _naming_damage(where: str) -> Iterator[None]:
    """Turn an error from reading a damaged value into a StoreError of one line."""
    try:
        yield
    except json.JSONDecodeError as error:
        raise StoreError(f"{where} damaged: not JSON at character {error.colno}") from None
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        missing = "is missing" if isinstance(error, KeyError) else ""
        reason = " ".join(f"{error} {missing}".split())[:120]
        raise StoreError(f"{where} damaged: {reason}") from None


def _content(path: Path) -> bytes:
    """Return the content of a plain file. Raises StoreError if it cannot be read."""
    with open(open_plain(path, os.O_RDONLY), "rb") as file:
        return file.read()


def _read_json(path: Path, kind: type[T]) -> T:
    content = _content(path)
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise StoreError(damaged_json(path, error)) from None
    if not isinstance(value, kind):
        raise StoreError(f"{path}: damaged: expected a JSON {'object' if kind is dict else 'list'}")
    return value


def _json_text(value: Any) -> bytes:
    text = json.dumps(value, indent=1, ensure_ascii=False)
    # Lists of plain numbers are put on one line, so that a plan's order stays readable.
    return (
        re.sub(r"\[\s+([-0-9.,\s]+?)\s+\]", lambda m: "[" + " ".join(m[1].split()) + "]", text).encode(
            errors="backslashreplace"
        )
        + b"\n"
    )
