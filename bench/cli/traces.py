"""Read what a job recorded, show it, and write it as a list of calls or as a sweep; for `import trace`."""

from pathlib import Path

import typer

from bench.cli.screen import show
from bench.importers.traces import reading
from bench.model.errors import ConfigError
from bench.model.recorded_calls import CallList
from bench.report import listings
from bench.store import call_file, folders


def import_trace(files: list[Path], save: Path | None, as_config: bool) -> int:
    """Print what was recorded, or a sweep of it; write the calls to `save`."""
    if save is not None and not call_file.is_call_list(save):
        raise ConfigError(f"--save {save}: the name of a list of calls ends in {call_file.SUFFIX}")
    found = reading.read(files)
    if save is not None:
        _write(save, found)
    if as_config:
        typer.echo(listings.calls_config(found, files[0].name))
    else:
        show(listings.calls(found))
    if save is not None:
        typer.echo(f"\n{save}", err=as_config)
    return 0


def _write(path: Path, found: CallList) -> None:
    if path.exists():
        raise ConfigError(f"--save {path}: it exists already")
    folders.write(path, call_file.to_text(found))
