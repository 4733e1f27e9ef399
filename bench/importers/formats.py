"""The table of formats: a name on the command line → the reader of one file. To add a tool: a module and an entry."""

from collections.abc import Callable

from bench.importers import nccl_tests, osu, param
from bench.importers.found import Options, Reading
from bench.importers.sources import Source

FORMATS: dict[str, Callable[[Source, Options], Reading]] = {
    "nccl-tests": nccl_tests.read,
    "osu": osu.read,
    "param": param.read,
}
