"""What a package adds to a configuration: a section, under a key of its own."""

from dataclasses import dataclass
from typing import Any

from bench.config.fields import Strict


@dataclass(frozen=True)
class PackageSection:
    """A section. name: its key. model: what it holds. about, example: for the documentation.

    operation: the one that it configures; needs: what that lacks without it, in words. cases: what it measures, in
    words. takes_budget: whether a budget divides time between them, too.
    """

    name: str
    model: type[Strict]
    about: str
    example: dict[str, Any]
    operation: str
    needs: str
    cases: str
    takes_budget: bool = False
