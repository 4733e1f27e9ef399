"""Import a function or another object from its module only when it is first used.

Tables name verbs, pictures and other parts by `Deferred`. A part may need pandas, matplotlib or torch, which take
seconds to import; commands that do not use the part do not import them.
"""

import importlib
import operator
from dataclasses import dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Deferred:
    """An object in a module of `collbench`: "module:name", such as "report.plots.sizes:scaling"."""

    target: str

    @property
    def module(self) -> str:
        """Return the full name of the module."""
        return "collbench." + self.target.partition(":")[0]

    @cached_property
    def value(self) -> Any:
        """Return the object. Its module is imported when the object is first read."""
        return operator.attrgetter(self.target.partition(":")[2])(importlib.import_module(self.module))

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.value(*arguments, **named)
