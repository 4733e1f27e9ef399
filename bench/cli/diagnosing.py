"""The verb that names names: `diagnose`."""

from enum import StrEnum
from typing import Annotated

import typer

from bench import store
from bench.cli.app import RESULTS, RunName, verb


class Words(StrEnum):
    """Formats of a diagnosis."""

    TEXT = "text"
    JSON = "json"


@verb
def diagnose(
    run: RunName = None,
    format: Annotated[Words, typer.Option(help="text, or json for programs.")] = Words.TEXT,  # noqa: A002
) -> None:
    """Name the rank that is late or slow, or the link that is slow; or say that nobody can be named."""
    import dataclasses
    import json

    from bench.analyze.diagnose import diagnose as examined
    from bench.report import findings

    result = store.read(store.find(RESULTS, run))
    diagnosis = examined(result)
    if format is Words.JSON:
        typer.echo(json.dumps(dataclasses.asdict(diagnosis), indent=1, ensure_ascii=False))
    else:
        typer.echo(f"{result.name}\n\n{findings.diagnosis(diagnosis)}")
