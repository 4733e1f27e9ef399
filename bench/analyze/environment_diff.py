"""What differs around the numbers of two runs: machine, software, settings.

In: two runs. Out: (fact, before, after) for each fact that is not the same. Judges nothing: whether a newer NCCL
explains a change is for the reader to say.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from bench.records import Json, Plan, Run
from bench.training.records import TrainingPlan, TrainingRun

NOT_AVAILABLE = "not available"
# Facts of a host that a difference in numbers may come from, by their place in environment.json.
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


def differences(before: Run | TrainingRun, after: Run | TrainingRun) -> tuple[tuple[str, str, str], ...]:
    """(fact, value before, value after) for what differs around the numbers; variables one by one."""
    old, new = _facts(before), _facts(after)
    rows = [(name, old.get(name, "-"), new.get(name, "-")) for name in dict.fromkeys([*old, *new])]
    return tuple(row for row in rows if row[1] != row[2])


def _facts(run: Run | TrainingRun) -> dict[str, str]:
    if isinstance(run, TrainingRun):
        threads = {"threads a rank": _all(_of_ranks(run.environment, lambda rank: rank.get("threads")))}
        return {**_of_a_measurement(run.environment), **threads, **_settings_of_training(run.plan)}
    if run.imported is not None:
        return _of_an_import(run, run.imported)
    origin = {"measured by": "CollBench", "aggregation": "maximum over ranks, median over iterations"}
    return {**origin, **_of_a_measurement(run.environment), **_settings(run.plan)}


def _of_an_import(run: Run, imported: Json) -> dict[str, str]:
    """The same facts, as far as another tool's output tells them."""
    told = [session.get("imported", {}) for session in run.environment]
    return {
        "measured by": _all(imported.get("tool", [])),
        "aggregation": _all(imported.get("statistic", [])),
        "hostname": _all(host for facts in told for host in facts.get("hosts", [])),
        "devices": _all(facts.get("devices") for facts in told),
        "nccl": _all(facts.get("nccl") for facts in told),
        **{name: str(value) for facts in told for name, value in facts.get("variables", {}).items()},
        "launches": str(run.plan.launches),
    }


def _of_a_measurement(sessions: list[Json]) -> dict[str, str]:
    hosts = [host for session in sessions for host in session.get("hosts") or [session.get("host", {})]]
    facts = {name: _all(_dig(host, name) for host in hosts) for name in FACTS}
    facts["launcher"] = _all(session.get("job", {}).get("launcher", "none") for session in sessions)
    facts["gpus"] = _all(_gpus(host, "name") for host in hosts)
    facts["gpu driver"] = _all(_gpus(host, "driver", count=False) for host in hosts)
    facts["infiniband"] = _all(_counted(port.get("rate") for port in host.get("infiniband", [])) for host in hosts)
    facts["devices"] = _all(_of_ranks(sessions, lambda rank: rank.get("device_name")))
    facts["nccl"] = _all(_of_ranks(sessions, lambda rank: rank.get("nccl")))
    facts["mpi"] = _all(_of_ranks(sessions, lambda rank: rank.get("mpi")))
    for name in sorted({name for host in hosts for name in host.get("variables", {})}):
        facts[name] = _all(host.get("variables", {}).get(name, "-") for host in hosts)
    return facts


def _settings(plan: Plan) -> dict[str, str]:
    asked = {f"sampling.{f.name}": str(getattr(plan.sampling, f.name)) for f in dataclasses.fields(plan.sampling)}
    return {
        **asked,
        "launches": str(plan.launches),
        "pool_bytes": str(plan.pool_bytes),
        "planted faults": str(len(plan.faults)),
    }


def _settings_of_training(plan: TrainingPlan) -> dict[str, str]:
    return {
        "launches": str(plan.launches),
        "rounds": _all(bout.rounds for bout in plan.bouts),
        "steps": str(plan.steps),
        "warmup": str(plan.warmup),
        "foreign": f"{plan.foreign:g}",
    }


def _of_ranks(sessions: list[Json], fact: Callable[[Json], Any]) -> Iterable[Any]:
    launches = (launch for session in sessions for launch in session.get("launches", []))
    return [fact(rank) for launch in launches for rank in launch.get("ranks", [])]


def _gpus(host: Json, fact: str, count: bool = True) -> str:
    values = [gpu.get(fact) for gpu in host.get("gpus", [])]
    return _counted(values) if count else _all(values)


def _counted(values: Iterable[Any]) -> str:
    counts = Counter(str(value) for value in values if value)
    return ", ".join(f"{count} × {name}" for name, count in sorted(counts.items())) or "none"


def _all(values: Iterable[Any]) -> str:
    """The distinct values over sessions or ranks; one, as a rule."""
    known = sorted({str(value) for value in values if value is not None})
    return " / ".join(known) or NOT_AVAILABLE


def _dig(facts: Any, path: str) -> Any:
    for key in path.split("."):
        facts = facts.get(key, NOT_AVAILABLE) if isinstance(facts, dict) else NOT_AVAILABLE
    return facts
