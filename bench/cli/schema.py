"""The verb `schema`: print the JSON Schema of a configuration, or of a report for programs."""

import json
from enum import StrEnum
from typing import Annotated

import typer

from bench.cli.benchmarks import BENCHMARKS, COLLECTIVES, TRAINING


class SchemaName(StrEnum):
    """What has a schema: the configuration of a benchmark, and what `report --format json` prints."""

    COLLECTIVES = COLLECTIVES.name
    TRAINING = TRAINING.name
    REPORT = "report"


def schema(
    of: Annotated[SchemaName, typer.Argument(help="A benchmark, or report.")] = SchemaName.COLLECTIVES,
) -> None:
    """`make schema` writes those of configurations into configs/, where editors find them."""
    if of is SchemaName.REPORT:
        from bench.report.machine_format import json_schema

        found = json_schema()
    else:
        found = BENCHMARKS[of.value].model.value.model_json_schema()
    typer.echo(json.dumps(found, indent=1, ensure_ascii=False))
