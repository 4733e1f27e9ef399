"""The verb `audit`: print which communication times of a published table cannot be right."""

from pathlib import Path
from typing import Annotated

import typer

from bench.errors import ConfigError, UnmeasurableError
from bench.importers import sources
from bench.training import published
from bench.training.analyze import audit as examination
from bench.training.report import audit as words
from bench.units import parse_share


def audit(
    file: Annotated[Path, typer.Argument(help="CSV of step times (docs/training-audit.md).", metavar="FILE.csv")],
    tolerance: Annotated[
        str | None, typer.Option(help="How far rows may disagree on T_compute; 1% if left out.", metavar="SHARE")
    ] = None,
) -> int:
    """Exit code 1 if something cannot be right, 3 if no group of rows allows a conclusion."""
    try:
        allowed = examination.TOLERANCE if tolerance is None else parse_share(tolerance)
    except ValueError as error:
        raise ConfigError(f"--tolerance {error}") from None
    result = examination.audit(published.read(sources.read(file).text, str(file)), allowed)
    typer.echo(words.text(result))
    if result.wrong:
        return 1
    return 0 if result.conclusive else UnmeasurableError.exit_code
