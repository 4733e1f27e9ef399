"""The command line: the only place that prints and picks exit codes. `app` has the table of verbs."""

from bench.cli.app import call

__all__ = ["call"]
