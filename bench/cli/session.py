"""What a run leaves behind besides its samples: how it ended, and what was around it."""

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import typer

from bench import store
from bench.errors import StoreError
from bench.records import Json


@contextlib.contextmanager
def kept_session(path: Path, sessions: list[Json], more: Json | None = None) -> Iterator[list[Json]]:
    """Say in the manifest how the run ended; write down the machine before and after, and the launches given here."""
    from bench.machine import host

    with _marked(path):
        session: Json = {"host": host.facts(), "before": host.state(), **(more or {})}
        store.write_environment(path, [*sessions, session])
        launches: list[Json] = []
        try:
            yield launches
        finally:
            session |= {"after": host.state(), "launches": launches}
            with contextlib.suppress(StoreError):  # a full disk has been said already
                store.write_environment(path, [*sessions, session])


@contextlib.contextmanager
def _marked(path: Path) -> Iterator[None]:
    """Say in the manifest how the run ended, and to the user what can be done about it."""

    def mark(status: str) -> None:
        store.update_manifest(path, status=status, finished=datetime.now(UTC).isoformat(timespec="seconds"))

    try:
        store.update_manifest(path, status="running")
        yield
    except KeyboardInterrupt:
        with contextlib.suppress(StoreError):
            mark("interrupted")
        typer.echo(f"interrupted; what was measured is kept, go on with: run --resume {path}", err=True)
        raise
    except BaseException:
        with contextlib.suppress(StoreError):
            mark("failed")
        raise
    mark("complete")
