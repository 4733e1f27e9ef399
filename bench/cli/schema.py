"""The verb `schema`: print the JSON Schema of a configuration."""

import json
from enum import StrEnum
from typing import Annotated

import typer

from bench.cli.benchmarks import BENCHMARKS, COLLECTIVES, TRAINING


class BenchmarkName(StrEnum):
    """Benchmarks that a configuration can ask for."""

    COLLECTIVES = COLLECTIVES.name
    TRAINING = TRAINING.name


def schema(
    of: Annotated[BenchmarkName, typer.Argument(help="The benchmark.")] = BenchmarkName.COLLECTIVES,
) -> None:
    """`make schema` writes it into configs/, where editors find it."""
    typer.echo(json.dumps(BENCHMARKS[of.value].model.value.model_json_schema(), indent=1, ensure_ascii=False))
