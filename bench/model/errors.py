"""Define the errors that a user can correct; each message is one line that says what to change, or a line a problem.

    BenchError                    exit code 2 unless said otherwise
    ├── ConfigError               the YAML or a --set
    ├── StoreError                a run folder: missing, damaged, newer, in use, disk full
    ├── ForeignError              a file of another tool: damaged, unknown, or without a fact that is needed
    ├── UnmeasurableError         exit code 3: nothing of what was asked can be measured here, or compared
    ├── JobError                  the processes of a job do not fit together, or do not find each other
    └── RankError                 the ranks' processes could not be started at all
        ├── MpirunError           mpirun did not start them; other backends are still measured
        └── LostRankError         the process that should have started a rank is gone; resume measures it again

Any module may raise them. Only `cli` prints them, with the sentences of their reasons, and sets the exit code.
A fault of a measured case (a killed rank, a wrong sum) is *not* an exception here: it is a
result, `records.Failure`.
"""

import errno
import json
import re

from bench.model.notices import Notice
from bench.model.visible import visible

# Exit codes of a run that was interrupted by Ctrl-C or a signal, and of one that met an error which nobody expected
# (EX_SOFTWARE of sysexits.h): a mistake in CollBench, and no verdict on what was measured.
INTERRUPTED, UNEXPECTED = 130, 70


# What Python says of damaged JSON → what stands there.
JSON_WORDS = {
    "Expecting value": "a value is missing here",
    "Expecting property name": "a key in double quotes is missing here",
    "Expecting ',' delimiter": "a comma or a closing bracket is missing here",
    "Expecting ':' delimiter": "a colon is missing here",
    "Unterminated string": "the text that begins here has no end",
    "Extra data": "the value ends before this",
}


class BenchError(Exception):
    """An error whose message is one line and tells the user what to change.

    What it quotes of a file may hold anything: line breaks become blanks, what cannot be seen is written out.
    """

    exit_code = 2
    # Reasons, which follow the text behind a colon.
    reasons: tuple[Notice | str, ...] = ()

    def __init__(self, text: str, *reasons: Notice | str) -> None:
        super().__init__(_printable(text))
        self.text, self.reasons = _printable(text), reasons

    def __str__(self) -> str:
        """The text with the names of its reasons, for whoever cannot write their sentences (`cli.terminal` can)."""
        named = (f"{one.kind} {dict(one.values)}" if isinstance(one, Notice) else one for one in self.reasons)
        return ": ".join(filter(None, [self.text, "; ".join(named)]))


def damaged_json(place: object, error: Exception) -> str:
    """A sentence on a file that is no JSON: where it breaks, and what should stand there. place: the file."""
    where = f":{error.lineno}:{error.colno}" if isinstance(error, json.JSONDecodeError) else ""
    return f"{place}{where}: damaged JSON: {json_words(error)}"


def json_words(error: Exception) -> str:
    """What should stand where JSON breaks."""
    text = str(error).partition(": line ")[0]
    return next((words for theirs, words in JSON_WORDS.items() if text.startswith(theirs)), text[:100])


def _printable(text: str) -> str:
    return visible(re.sub(r"[\n\r\t]+", " ", text), kept="")


class ConfigError(BenchError):
    """The configuration cannot be used: for each problem a line with file, key, value and what is allowed."""

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
    """The ranks' processes could not be started; rank: the one that is to blame, None if none is."""

    def __init__(self, text: str, rank: int | None = None) -> None:
        super().__init__(text)
        self.rank = rank


class MpirunError(RankError):
    """mpirun could not be started, or did not start its processes; ranks of other backends may still start."""


class JobError(BenchError):
    """The processes of a job were told contradictory things, do not fit together, or do not find each other."""


class LostRankError(RankError):
    """The process that should have started rank `rank`, or all ranks (None), is gone."""


def reason_of(error: OSError) -> str:
    """What an operating system's error says, for a message."""
    if error.errno == errno.ENOSPC:
        return "the disk is full"
    return (error.strerror or str(error)).lower()
