"""The verb `diagnose`: print which rank, node or link is slow, or that none can be named."""

import dataclasses
import json
from enum import StrEnum
from typing import Annotated

import typer

from bench.analyze.analysis import diagnose as examine
from bench.cli.app import RESULTS, RunName
from bench.cli.benchmarks import collectives_only
from bench.cli.screen import show
from bench.report import findings
from bench.store import folders
from bench.store.encoding import CODEC


class DiagnosisFormat(StrEnum):
    """Formats of a diagnosis."""

    TEXT = "text"
    JSON = "json"


def diagnose(
    run: RunName = None,
    format: Annotated[  # noqa: A002
        DiagnosisFormat, typer.Option(help="text, or json for programs.")
    ] = DiagnosisFormat.TEXT,
) -> None:
    """A rank is late if it arrives last more often than by chance. Links are judged by the operation pairwise."""
    path = folders.find(RESULTS, run)
    collectives_only([path], "diagnose")
    result = folders.read(path, CODEC)
    diagnosis = examine(result)
    if format is DiagnosisFormat.JSON:
        typer.echo(json.dumps(dataclasses.asdict(diagnosis), indent=1, ensure_ascii=False))
    else:
        show(f"{result.name}\n\n{findings.diagnosis(diagnosis)}")
