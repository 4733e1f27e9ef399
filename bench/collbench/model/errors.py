"""Define the errors that a user can correct; each message is one line with the remedy, or one line per problem.

    BenchError                    exit code 2 unless stated otherwise
    ├── ConfigError               the YAML or a --set
    ├── StoreError                a run folder: missing, damaged, newer, in use, disk full
    ├── ForeignError              a file of another tool: damaged, unknown, or without a fact that is needed
    ├── UnmeasurableError         exit code 3: nothing that was requested can be measured here, or compared
    ├── JobError                  the processes of a job do not fit together, or do not find each other
    └── RankError                 the ranks' processes could not be started at all
        ├── StartError            a rank of another process; launches without that rank are still measured
        ├── MpirunError           mpirun did not start them; other backends are still measured
        └── LostRankError         the process that should have started a rank is gone; resume measures it again

Any module may raise them. Only `cli` prints them, with the sentences of their reasons, and sets the exit code.
A fault of a measured case (a killed rank, a wrong sum) is *not* an exception here: it is a
result, `records.Failure`.
"""

import errno
import json
import re

from collbench.model.notices import Notice
from collbench.model.visible import visible

# Exit codes: of a run that Ctrl-C or a signal interrupted, and of a run with an unexpected error (EX_SOFTWARE of
# sysexits.h), which is a mistake in CollBench and not a verdict on the measurements.
INTERRUPTED, UNEXPECTED = 130, 70


class BenchError(Exception):
    """An error whose message is one line and states what the user must change.

    Text quoted from a file may contain any character: line breaks become blanks, invisible characters are escaped.
    """

    exit_code = 2
    # Reasons, which follow the text after a colon.
    reasons: tuple[Notice | str, ...] = ()

    def __init__(self, text: str, *reasons: Notice | str) -> None:
        super().__init__(_printable(text))
        self.text, self.reasons = _printable(text), reasons

    def __str__(self) -> str:
        """Return the text with the names of its reasons. `cli.terminal` writes the reasons as sentences instead."""
        named = (f"{item.kind} {dict(item.values)}" if isinstance(item, Notice) else item for item in self.reasons)
        return ": ".join(filter(None, [self.text, "; ".join(named)]))


def damaged_json(place: object, error: Exception) -> str:
    """Return a sentence on a file that is not JSON: position and description of the error. place: the file."""
    where = f":{error.lineno}:{error.colno}" if isinstance(error, json.JSONDecodeError) else ""
    return f"{place}{where}: damaged JSON: {json_words(error)}"


def json_words(error: Exception) -> str:
    """Return a description of an error in JSON, without its place."""
    return str(error).partition(": line ")[0][:100]


def _printable(text: str) -> str:
    return visible(re.sub(r"[\n\r\t]+", " ", text), kept="")


class ConfigError(BenchError):
    """The configuration cannot be used. The message has a line per problem: file, key, value and what is allowed."""

    def __init__(self, *problems: str) -> None:
        Exception.__init__(self, *problems)
        self.text = "\n".join(map(_printable, problems))


class StoreError(BenchError):
    """A results folder cannot be read or written."""


class ForeignError(BenchError):
    """A file of another tool cannot be read: the message has file and reason."""


class UnmeasurableError(BenchError):
    """Nothing of what was asked for can be measured on this machine, or compared with these runs."""

    exit_code = 3


class RankError(BenchError):
    """The ranks' processes could not be started. rank: the rank at fault; None if no rank is at fault."""

    def __init__(self, text: str, rank: int | None = None) -> None:
        super().__init__(text)
        self.rank = rank


class StartError(RankError):
    """The agent of another process could not start rank `rank`; ranks of other launches may still start."""


class MpirunError(RankError):
    """mpirun could not be started, or did not start its processes; ranks of other backends may still start."""


class JobError(BenchError):
    """The processes of a job got contradictory instructions, do not fit together, or do not find each other."""


class LostRankError(RankError):
    """The process that should have started rank `rank`, or all ranks (None), is gone."""


def reason_of(error: OSError) -> str:
    """Return the reason of an operating system's error, for a message."""
    if error.errno == errno.ENOSPC:
        return "the disk is full"
    return (error.strerror or str(error)).lower()
