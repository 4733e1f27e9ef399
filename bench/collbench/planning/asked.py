"""Define what a package's section of a configuration asks for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from collbench.catalog.collectives import OPERATIONS
from collbench.config.models import SECTION_OF, Config
from collbench.model.notices import Notice
from collbench.model.records import Case, Machine, OwnSettings, Skip


@dataclass(frozen=True)
class Asked:
    """The cases of a package that a configuration asks for."""

    # The core examines them like its own cases: memory, fewest ranks, operations of the backend.
    cases: Sequence[Case] = ()
    skips: Sequence[Skip] = ()
    # What a user should know before measuring.
    notices: Sequence[Notice] = ()
    # The settings that these cases refer to; None if they need none.
    settings: OwnSettings | None = None
    # Files that the run keeps in its folder: name → text.
    files: Mapping[str, str] = field(default_factory=dict)


def asked(config: Config, machine: Machine) -> list[Asked]:
    """Return what the sections of the configuration ask for."""
    found = []
    for operation, name in SECTION_OF.items():
        if (section := getattr(config, name)) is not None and (cases := OPERATIONS[operation].cases) is not None:
            found.append(cases(config, machine, section))
    return found
