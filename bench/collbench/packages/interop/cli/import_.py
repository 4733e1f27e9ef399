"""The verb `import`: make a run from the output of another tool."""

import re
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from collbench.analyze.analysis import analyze
from collbench.catalog.backends import BACKENDS
from collbench.catalog.collectives import OPERATIONS
from collbench.cli.app import RESULTS
from collbench.cli.output import conclude
from collbench.cli.terminal import say, show
from collbench.machine import memory
from collbench.model.errors import ConfigError, StoreError
from collbench.model.records import NAME_PATTERN
from collbench.model.units import MOST_RANKS, counted
from collbench.model.visible import visible
from collbench.packages.interop.importers import assembly
from collbench.packages.interop.importers.assembly import READERS, Imported
from collbench.packages.interop.importers.nccl_text import READ
from collbench.packages.interop.importers.readings import Options, read_source
from collbench.store import encoding, folders
from collbench.store.folders import Journal

ImportFormat = StrEnum("ImportFormat", [(name, name) for name in READERS])  # type: ignore[misc]
FORMATS_HELP = (
    f"The tool that wrote the files: nccl-tests (text of {READ} and of rccl-tests, or JSON); "
    "osu (OSU Micro-Benchmarks). What a job recorded is for replay --look."
)
# Unreadable lines of a file: number of lines that are shown, and number of characters per line.
MOST_UNREAD, LONGEST_UNREAD = 3, 100


def import_(
    context: typer.Context,
    format: Annotated[  # noqa: A002
        ImportFormat, typer.Argument(help=FORMATS_HELP, metavar="FORMAT")
    ],
    files: Annotated[list[Path], typer.Argument(help="Text or JSON; several are further launches.", metavar="FILE...")],
    name: Annotated[str | None, typer.Option(help="Name the run (default: the first file's name).")] = None,
    world_size: Annotated[
        int | None,
        typer.Option(min=1, max=MOST_RANKS, help="Give the number of ranks if the files do not.", metavar="N"),
    ] = None,
    operation: Annotated[
        str | None, typer.Option(help="Name the collective if the files do not.", metavar="NAME")
    ] = None,
    backend: Annotated[
        str | None, typer.Option(help="Name the library, such as mpi, if the files do not.", metavar="NAME")
    ] = None,
) -> int:
    """Nothing is written unless all files could be read.

    Exit code 1 if the tool found results to be wrong.
    """
    for option, given, known in (("operation", operation, OPERATIONS), ("backend", backend, BACKENDS)):
        if given is not None and given not in known:
            raise ConfigError(f"--{option} {given}: no such {option}; allowed: {', '.join(known)}")
    if name is not None and not re.fullmatch(NAME_PATTERN, name):
        raise ConfigError(f"--name {name!r}: letters, digits, dots, dashes and underscores, 64 at most")
    options = Options(world_size, operation, backend)
    title = name or re.sub(r"[^\w.-]+", "-", files[0].stem).strip("-._")[:60] or "imported"
    with memory.limited(files):
        sources = map(read_source, files)
        readings = [(source, READERS[format.value](source, options)) for source in sources]
        imported = assembly.assemble(format.value, title, readings)
    path = _written(imported, context.obj)
    _show(path, imported)
    result = folders.read(path)
    return conclude(result, analyze(result), plots=False)


def _written(imported: Imported, given: list[str]) -> Path:
    """Write the run and return its folder. If it cannot be written completely, the folder is removed."""
    arguments = [argument.encode(errors="replace").decode() for argument in given]
    facts = {"argv": arguments, "imported": imported.facts}
    path = folders.create(RESULTS, imported.plan, assembly.explanation(imported), facts)
    try:
        folders.write_environment(path, [imported.session])
        with Journal(path) as journal:
            journal.append(b"\n".join(map(encoding.samples_to_line, imported.samples)))
        folders.update_manifest(path, status="complete", finished=datetime.now(UTC).isoformat(timespec="seconds"))
    except BaseException as error:
        folders.discard(path)
        if isinstance(error, StoreError):
            raise StoreError(f"{str(error).partition(';')[0]}; nothing was imported") from None
        raise
    return path


def _show(path: Path, imported: Imported) -> None:
    """Print what was imported, and lines that could not be read."""
    facts, samples = imported.facts, imported.samples
    files, tools = ", ".join(file["name"] for file in facts["files"]), ", ".join(facts["tool"])
    cases = counted(len({entry.case for entry in samples}), "case")
    content = f"{counted(imported.rows, 'row')} → {counted(len(samples), 'result')} of {cases}"
    show([f"imported {files} ({tools}): {content} in {counted(imported.plan.launches, 'launch')}\n{path}"])
    unread = [f"  {line['file']}:{line['line']}: {visible(line['text'])[:LONGEST_UNREAD]}" for line in facts["unread"]]
    if unread:
        say(f"warning: {counted(len(unread), 'line')} could not be read:", err=True)
        say("\n".join(unread[:MOST_UNREAD]), err=True)
    if len(unread) > MOST_UNREAD:
        say(f"  and {len(unread) - MOST_UNREAD} more: manifest.json has all", err=True)
    say("")
