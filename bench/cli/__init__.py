"""The command line: the only place that prints and picks exit codes. The table of verbs is in `app`."""

from bench.cli.app import call

__all__ = ["call"]
