"""The command line: the only place that prints and picks exit codes. The table of verbs is in `app`."""

from collbench.cli.app import call

__all__ = ["call"]
