"""What a user can mend, said in one line.

    BenchError                    exit code 2 unless said otherwise
    ├── ConfigError               the YAML or a --set
    ├── StoreError                a run folder: missing, damaged, newer, in use, disk full
    ├── ForeignError              the output of another tool: damaged, unknown, or silent on what is needed
    ├── UnmeasurableError         exit code 3: this machine cannot measure what was asked
    ├── JobError                  the processes of a job do not fit together, or do not find each other
    └── RankError                 the ranks' processes could not be started at all
        ├── MpirunError           mpirun did not start them; other backends go on
        └── LostRankError         the process that should have started one is gone

Raised anywhere below `cli`, which alone prints them and picks the exit code.
A fault of a measured case (a killed rank, a wrong sum) is *not* an exception here: it is a
result, `records.Failure`.
"""

# Exit code of a run that Ctrl-C or a signal broke off.
INTERRUPTED = 130


class BenchError(Exception):
    """A fault with a one-line message that tells the user what to change."""

    exit_code = 2


class ConfigError(BenchError):
    """The configuration cannot be used: file, key, value and what is allowed are in the message."""


class StoreError(BenchError):
    """A results folder cannot be read or written."""


class ForeignError(BenchError):
    """The output of another tool cannot be imported: file and reason are in the message."""


class UnmeasurableError(BenchError):
    """Everything that was asked for is impossible on this machine."""

    exit_code = 3


class RankError(BenchError):
    """The processes that are to be the ranks could not be started."""


class MpirunError(RankError):
    """mpirun could not be started, or did not start what it should: ranks of other backends may well start."""


class JobError(BenchError):
    """Several processes were started together, and how they were told of each other cannot be used."""


class LostRankError(RankError):
    """The process of a job that should have started rank `rank` is gone."""

    def __init__(self, rank: int, text: str) -> None:
        super().__init__(text)
        self.rank = rank
