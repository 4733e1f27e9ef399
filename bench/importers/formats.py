"""List the formats that can be imported: name on the command line → the function that reads one file.

To add a tool, add a module and an entry.
"""

from collections.abc import Callable
from dataclasses import dataclass

from bench.importers import nccl_tests, osu
from bench.importers.found import Options, Reading
from bench.importers.sources import Source


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """about: the tool and its outputs, for people. read: reads one file."""

    about: str
    read: Callable[[Source, Options], Reading]


FORMATS = {
    "nccl-tests": ToolFormat("text of nccl-tests 2.0 or later and of rccl-tests, or JSON", nccl_tests.read),
    "osu": ToolFormat("OSU Micro-Benchmarks", osu.read),
}
