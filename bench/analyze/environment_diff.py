"""List what differs between two runs besides their numbers: machine, software, settings.

In: the facts of two runs, by name. Out: (fact, before, after) for each fact that differs. Judges nothing: the reader
has to decide whether a newer NCCL explains a change.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from bench.model.records import NOT_AVAILABLE, Json, Plan, Run

Facts = dict[str, str]

# Facts of a host that can explain a difference in numbers, by their path in environment.json.
FACTS = (
    "hostname",
    "collbench",
    "commit",
    "python",
    "packages.torch",
    "kernel",
    "boot_id",
    "cpu.model",
    "cpu.usable_cores",
    "cpu.governor",
    "memory_bytes",
    "cgroup_cpu_max",
)


def differences(before: Facts, after: Facts) -> tuple[tuple[str, str, str], ...]:
    """(fact, value before, value after) of the facts that differ; "-" where a run does not have one."""
    rows = [(name, before.get(name, "-"), after.get(name, "-")) for name in dict.fromkeys([*before, *after])]
    return tuple(row for row in rows if row[1] != row[2])


def facts_of(run: Run) -> Facts:
    """The facts of a run of collectives, measured here or imported."""
    if run.imported is not None:
        return _of_an_import(run, run.imported)
    origin = {"measured by": "CollBench", "aggregation": "maximum over ranks, median over iterations"}
    return {**origin, **of_sessions(run.environment), **_settings(run.plan)}


def _of_an_import(run: Run, imported: Json) -> Facts:
    """The same facts, as far as another tool's output tells them."""
    told = [session.get("imported", {}) for session in run.environment]
    return {
        "measured by": distinct(imported.get("tool", [])),
        "aggregation": distinct(imported.get("statistic", [])),
        "hostname": distinct(host for facts in told for host in facts.get("hosts", [])),
        "devices": distinct(facts.get("devices") for facts in told),
        "nccl": distinct(facts.get("nccl") for facts in told),
        **{name: str(value) for facts in told for name, value in facts.get("variables", {}).items()},
        "launches": str(run.plan.launches),
    }


def of_sessions(sessions: list[Json]) -> Facts:
    """Machine, software and environment variables of a measured run; each variable is a fact of its own."""
    hosts = [host for session in sessions for host in session.get("hosts") or [session.get("host", {})]]
    facts = {name: distinct(_dig(host, name) for host in hosts) for name in FACTS}
    facts["launcher"] = distinct(session.get("job", {}).get("launcher", "none") for session in sessions)
    facts["gpus"] = distinct(_gpus(host, "name") for host in hosts)
    facts["gpu driver"] = distinct(_gpus(host, "driver", count=False) for host in hosts)
    facts["infiniband"] = distinct(_counted(port.get("rate") for port in host.get("infiniband", [])) for host in hosts)
    facts["devices"] = distinct(of_ranks(sessions, lambda rank: rank.get("device_name")))
    facts["nccl"] = distinct(of_ranks(sessions, lambda rank: rank.get("nccl")))
    facts["mpi"] = distinct(of_ranks(sessions, lambda rank: rank.get("mpi")))
    for name in sorted({name for host in hosts for name in host.get("variables", {})}):
        facts[name] = distinct(host.get("variables", {}).get(name, "-") for host in hosts)
    return facts


def _settings(plan: Plan) -> Facts:
    asked = {f"sampling.{f.name}": str(getattr(plan.sampling, f.name)) for f in dataclasses.fields(plan.sampling)}
    return {
        **asked,
        "launches": str(plan.launches),
        "pool_bytes": str(plan.pool_bytes),
        "planted faults": str(len(plan.faults)),
    }


def of_ranks(sessions: list[Json], fact: Callable[[Json], Any]) -> Iterable[Any]:
    """One fact of each rank of each launch."""
    launches = (launch for session in sessions for launch in session.get("launches", []))
    return [fact(rank) for launch in launches for rank in launch.get("ranks", [])]


def _gpus(host: Json, fact: str, count: bool = True) -> str:
    values = [gpu.get(fact) for gpu in host.get("gpus", [])]
    return _counted(values) if count else distinct(values)


def _counted(values: Iterable[Any]) -> str:
    counts = Counter(str(value) for value in values if value)
    return ", ".join(f"{count} × {name}" for name, count in sorted(counts.items())) or "none"


def distinct(values: Iterable[Any]) -> str:
    """The distinct values over sessions or ranks, joined by slashes; usually one."""
    known = sorted({str(value) for value in values if value is not None})
    return " / ".join(known) or NOT_AVAILABLE


def _dig(facts: Any, path: str) -> Any:
    for key in path.split("."):
        facts = facts.get(key, NOT_AVAILABLE) if isinstance(facts, dict) else NOT_AVAILABLE
    return facts
