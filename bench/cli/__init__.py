"""The command line: the only place that prints and picks exit codes. `app` has every verb."""

from bench.cli import comparing, machine, reading, running  # noqa: F401 - importing registers their verbs
from bench.cli.app import app

__all__ = ["app"]
