"""Names of things in modules that are loaded when they are first used.

A verb, a picture or an importer is a line of a table; what it needs (pandas, matplotlib, torch) costs seconds to load,
and is not loaded for the others.
"""

import importlib
import operator
from dataclasses import dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Deferred:
    """Something in a module: "module:name" within `bench`, such as "report.pictures:CATALOGUE.draw"."""

    target: str

    @property
    def module(self) -> str:
        """The full name of the module."""
        return "bench." + self.target.partition(":")[0]

    @cached_property
    def value(self) -> Any:
        """What the text names."""
        return operator.attrgetter(self.target.partition(":")[2])(importlib.import_module(self.module))

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.value(*arguments, **named)
