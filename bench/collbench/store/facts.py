"""Check the facts that a run's folder records about the run and its machine: manifest.json, environment.json.

In: the content of a file, which anybody may have written. Out: the same content, typed; ValueError if a value that is
read later has another type, so that other code need not check again. Further keys are allowed.
"""

import re
from datetime import datetime
from typing import Any

from collbench.model.facts import LaunchFacts, Manifest, Session
from collbench.model.notices import Notice
from collbench.model.records import Json
from collbench.store.encoding import validated

# Device of a rank, such as `cuda:3` or `cpu`.
_DEVICE = re.compile(r"[a-z]+(:\d{1,4})?")


def manifest_of(data: Json) -> Manifest:
    """Return the manifest; raises ValueError, with the key, if a value is not as CollBench writes it."""
    manifest: Manifest = _checked(Manifest, data)
    for name, moment in (("started", manifest.get("started")), ("finished", manifest.get("finished"))):
        if moment is not None and datetime.fromisoformat(moment).utcoffset() is None:
            raise ValueError(f"{name}: a time without its zone")
    return manifest


def notices_of(manifest: Manifest) -> list[Notice]:
    """Return the notices of an imported run; raises ValueError for a kind that no part of CollBench has."""
    return validated(list[Notice], manifest.get("imported", {}).get("notices", []))


def environment_of(data: list[Any]) -> list[Session]:
    """Return the sessions; raises ValueError, with the key, if a value is not as CollBench writes it."""
    sessions: list[Session] = _checked(list[Session], data)
    for number, session in enumerate(sessions):
        if "job" in session and "hosts" not in session:
            raise ValueError(f"{number}.hosts: a job has hosts")
        for host in [*([session["host"]] if "host" in session else []), *session.get("hosts", [])]:
            if not host.get("cgroup_cpu_max", "max").strip():
                raise ValueError(f"{number}.host.cgroup_cpu_max: it is empty")
        for launch in session.get("launches", []):
            _check_launch(launch, number)
    return sessions


def _check_launch(launch: LaunchFacts, number: int) -> None:
    clocks = launch.get("clocks")
    if clocks and {len(moment) for moment in clocks} != {launch.get("world_size")}:
        raise ValueError(f"{number}.launches: the clocks do not cover all ranks")
    for rank in launch.get("ranks", []):
        if not _DEVICE.fullmatch(rank.get("device", "cpu")):
            raise ValueError(f"{number}.launches.ranks.device: {rank.get('device')!a} is not a device, such as cuda:3")


def _checked(kind: Any, value: Any) -> Any:
    """Return the value itself, because the validated one lacks further keys."""
    validated(kind, value, strict=True)
    return value
