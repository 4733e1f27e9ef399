"""Define the section that a package adds to a configuration, under a key of its own."""

from dataclasses import dataclass
from typing import Any

from collbench.config.fields import Strict


@dataclass(frozen=True)
class PackageSection:
    """A section that a package adds to a configuration."""

    # Key of the section.
    name: str
    # Model of the content.
    model: type[Strict]
    # Description and example, for the documentation.
    about: str
    example: dict[str, Any]
    # The operation that the section configures.
    operation: str
    # Content that the operation needs, in words; the message is "the operation X needs …".
    needs: str
    # Cases that the section measures, in words.
    cases: str
    # True if a budget divides time between these cases, too.
    takes_budget: bool = False
