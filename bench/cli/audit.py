"""The verb `audit`: print which communication times of a published table cannot be right."""

from pathlib import Path
from typing import Annotated

import typer

from bench.cli.screen import show
from bench.importers import sources
from bench.model.errors import ConfigError, UnmeasurableError
from bench.model.units import parse_share
from bench.training import published
from bench.training.analyze import audit as examination
from bench.training.report import audit as words


def audit(
    file: Annotated[
        Path,
        typer.Argument(help="A table of step times, in Markdown or CSV (docs/training-audit.md).", metavar="FILE"),
    ],
    tolerance: Annotated[
        str | None, typer.Option(help="How far rows may disagree on T_compute; 1% if left out.", metavar="SHARE")
    ] = None,
    unit: Annotated[str, typer.Option(help="Of times that name none: s, ms, us, ns.")] = "",
) -> int:
    """Exit code 1 if something cannot be right, 3 if no group of rows allows a conclusion."""
    try:
        allowed = examination.TOLERANCE if tolerance is None else parse_share(tolerance)
    except ValueError as error:
        raise ConfigError(f"--tolerance {error}") from None
    if unit and unit not in published.SECONDS:
        raise ConfigError(f"--unit {unit}: allowed are {', '.join(published.SECONDS)}")
    result = examination.audit(published.read(sources.read(file).text, str(file), unit), allowed)
    show(words.text(result))
    if result.wrong:
        return 1
    return 0 if result.conclusive else UnmeasurableError.exit_code
