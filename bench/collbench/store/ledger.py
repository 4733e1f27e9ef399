"""Read and write the noise ledger: the noise of each run on this machine, one line per run in `results/ledger.jsonl`.

In: a `LedgerEntry`. Out: all entries. Lines are only appended, each in one write under a lock, so that several runs can
end at the same time. Launches of one run share the boot of the machine and its neighbours, so that only a history shows
the between-run variance. The format: docs/develop/results-format.md.
"""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from collbench.model.errors import StoreError
from collbench.model.records import NOT_AVAILABLE
from collbench.store import locks
from collbench.store.encoding import decoded, encoded
from collbench.store.folders import naming

FILE = "ledger.jsonl"


@dataclass(frozen=True, slots=True)
class MachineIdentity:
    """Facts that must be equal if two runs are to show between-run variance: a change by an upgrade is not noise."""

    hosts: str
    cpu: str
    cores: str
    gpus: str
    # Boot id of the kernel, for the reader; comparisons ignore it.
    boot: str
    kernel: str
    torch: str
    # Version of NCCL that the ranks loaded.
    nccl: str
    # Launcher of the job; the barrier of a job crosses the network.
    launcher: str
    # How many iterations a case got, as text.
    sampling: str
    # Fingerprint of all facts that block a resume if they differ, such as interfaces, variables and CPU quotas.
    facts: str

    def is_same_hardware(self, other: "MachineIdentity") -> bool:
        """Return whether the hardware is the same. Software, launcher, boot and sampling may differ."""
        return (self.hosts, self.cpu, self.cores, self.gpus) == (other.hosts, other.cpu, other.cores, other.gpus)

    def is_same(self, other: "MachineIdentity") -> bool:
        """Return whether at most the boot differs. NCCL counts if both report it: `plan` has no ranks that load it."""
        nccl = {self.nccl, other.nccl} - {NOT_AVAILABLE}
        return len(nccl) <= 1 and replace(self, boot="", nccl="") == replace(other, boot="", nccl="")


@dataclass(frozen=True, slots=True)
class CaseNoise:
    """The time of one case in one run, and standard deviations of the logarithms of its times."""

    launches: int
    # Geometric mean, over the launches, of the mean times of the launches, in seconds.
    mean_s: float
    # Between-launch standard deviation.
    launch: float
    # Within-launch standard deviation, between blocks; None if there are too few blocks.
    block: float | None


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """The entry of one run in the ledger, with the noise of each case by its key."""

    run: str
    # Time of the end of the run, in UTC.
    ended: str
    machine: MachineIdentity
    cases: dict[str, CaseNoise]


def append(root: Path, entry: LedgerEntry) -> None:
    """Append the entry as a line. Raises StoreError."""
    line = encoded(entry) + b"\n"
    with naming(root / FILE):
        fd = os.open(root / FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        with os.fdopen(fd, "ab", buffering=0) as file:
            locks.wait_for(fd)
            end = os.fstat(fd).st_size
            if file.write(line) != len(line):  # the disk is full: half a line would damage the next one, too
                file.truncate(end)
                raise StoreError(f"{root / FILE}: the disk is full")


def read(root: Path) -> list[LedgerEntry]:
    """Return all entries, oldest first; for a resumed run, only its last. Lines that cannot be read are left out."""
    try:
        lines = (root / FILE).read_bytes().splitlines()
    except OSError:
        return []
    entries: dict[str, LedgerEntry] = {}
    for line in lines:
        try:
            entry = decoded(line, LedgerEntry)
        except ValueError:  # written by a later version, or torn by a crash
            continue
        entries.pop(entry.run, None)
        entries[entry.run] = entry
    return list(entries.values())
