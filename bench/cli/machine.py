"""Verbs that tell of this machine and of the configuration: `doctor`, `schema`."""

import json
from enum import StrEnum
from typing import Annotated, Any

import typer

from bench.cli.app import verb
from bench.errors import UnmeasurableError


@verb
def doctor() -> int:
    """Say what this machine can measure, and what stands in the way."""
    from bench.launch import doctor as examination
    from bench.machine import environment

    machine = environment.machine()
    signs = {"ok": "ok  ", "note": "note", "missing": "NO  "}
    findings = [*examination.examine(machine)]
    for finding in findings:
        typer.echo(_line_of(signs[finding.level], finding))
    if "gloo" in machine.backends_missing:
        return UnmeasurableError.exit_code
    trial = examination.trial()
    typer.echo(_line_of(signs[trial.level], trial))
    return 0 if trial.level == "ok" else 1


def _line_of(sign: str, finding: Any) -> str:
    remedy = f"  → {finding.remedy}" if finding.remedy else ""
    return f"{sign}  {finding.subject:<14} {finding.text}{remedy}"


class Benchmark(StrEnum):
    """What a configuration can be of."""

    COLLECTIVES = "collectives"
    TRAINING = "training"


@verb
def schema(
    of: Annotated[Benchmark, typer.Argument(help="Of which configurations.")] = Benchmark.COLLECTIVES,
) -> None:
    """Print the JSON Schema of the configuration (make schema keeps it in configs/schema.json)."""
    from bench.config import Config
    from bench.training.config import TrainingConfig

    model = TrainingConfig if of is Benchmark.TRAINING else Config
    typer.echo(json.dumps(model.model_json_schema(), indent=1, ensure_ascii=False))
