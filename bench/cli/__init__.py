"""The command line: the only place that prints and picks exit codes. `app` has every verb."""

from collections.abc import Sequence

import bench.cli.advising
import bench.cli.auditing
import bench.cli.comparing
import bench.cli.diagnosing
import bench.cli.equivalence
import bench.cli.importing
import bench.cli.machine
import bench.cli.reading
import bench.cli.running  # noqa: F401 - importing registers the verbs
from bench.cli.app import app

__all__ = ["app", "call"]


def call(arguments: Sequence[str]) -> int:
    """Do what the arguments say, as the command line does, and return its exit code."""
    try:
        app(list(arguments), obj=list(arguments))
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1 if end.code else 0
    return 0
