"""The command line: the only place that prints and picks exit codes. `app` has every verb."""

import bench.cli.comparing
import bench.cli.diagnosing
import bench.cli.importing
import bench.cli.machine
import bench.cli.reading
import bench.cli.running  # noqa: F401 - importing registers the verbs
from bench.cli.app import app

__all__ = ["app"]
