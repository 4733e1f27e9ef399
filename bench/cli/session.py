"""Record how a run ended, and the machine before and after it.

In: the folder of a run, and the sessions that it already has. Out: its status in the manifest, and one more entry in
environment.json. It does not write samples.
"""

import contextlib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import typer

from bench.model.errors import StoreError
from bench.model.records import Json
from bench.store import folders


@contextlib.contextmanager
def recorded_session(path: Path, sessions: list[Json], more: Json | None = None) -> Iterator[list[Json]]:
    """Context that records one session of a run: its status, and the machine before and after.

    Yields a list for what the ranks of each launch said of themselves. more: further facts of the session.
    """
    from bench.machine import host

    with _marked(path):
        session: Json = {"host": host.facts(), "before": host.state(), **(more or {})}
        folders.write_environment(path, [*sessions, session])
        launches: list[Json] = []
        try:
            yield launches
        finally:
            session |= {"after": host.state(), "launches": launches}
            with contextlib.suppress(StoreError):  # a full disk has been reported already
                folders.write_environment(path, [*sessions, session])


@contextlib.contextmanager
def recorded_sides(path: Path, sessions: list[Json], facts: Mapping[str, Json]) -> Iterator[dict[str, list[Json]]]:
    """The same for a run of two sides: a session of each side. facts: by side. Yields a list for each side."""
    from bench.machine import host

    with _marked(path):
        state = host.state()
        added: dict[str, Json] = {side: {"side": side, **of_side, "before": state} for side, of_side in facts.items()}
        folders.write_environment(path, [*sessions, *added.values()])
        launches: dict[str, list[Json]] = {side: [] for side in facts}
        try:
            yield launches
        finally:
            after = host.state()
            for side, session in added.items():
                session |= {"after": after, "launches": launches[side]}
            with contextlib.suppress(StoreError):  # a full disk has been reported already
                folders.write_environment(path, [*sessions, *added.values()])


@contextlib.contextmanager
def _marked(path: Path) -> Iterator[None]:
    """Write into the manifest how the run ended; after an interrupt, print how to go on."""

    def mark(status: str) -> None:
        folders.update_manifest(path, status=status, finished=datetime.now(UTC).isoformat(timespec="seconds"))

    try:
        folders.update_manifest(path, status="running")
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
