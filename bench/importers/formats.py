"""List the formats that can be imported: name on the command line → the function that reads one file.

To add a tool, add a module and an entry.
"""

from collections.abc import Callable

from bench.importers import nccl_tests, osu, param
from bench.importers.found import Options, Reading
from bench.importers.sources import Source

FORMATS: dict[str, Callable[[Source, Options], Reading]] = {
    "nccl-tests": nccl_tests.read,
    "osu": osu.read,
    "param": param.read,
}
