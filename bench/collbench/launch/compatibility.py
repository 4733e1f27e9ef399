"""Check that the processes of a job are compatible, and merge their reports about their hosts.

In: the request of this process, and the handshake of each process. Out: one `Machine` for planning, records of the
hosts for the results, or a JobError that names the incompatible rank and the remedy. Sends no messages: `coordinator`
and `agent` send them.
"""

import dataclasses
import hashlib
import os
from collections.abc import Callable, Sequence

from collbench import __version__
from collbench.launch.job import JobRank
from collbench.machine import host
from collbench.model.errors import BenchError, JobError
from collbench.model.notices import Notice
from collbench.model.records import NOT_SET, Json, Machine
from collbench.store.encoding import validated

# Digits of a fingerprint in a message: enough to see that two configurations differ.
SHOWN_DIGITS = 8


def handshake(place: JobRank, request: Callable[[], bytes]) -> Json:
    """Return the handshake of this process; rank 0 also makes a handshake for itself.

    request: returns the request of this process, mainly the configuration, as bytes. If it raises BenchError, the
    handshake contains the error text, because only rank 0 prints.
    """
    problem, fingerprint = None, ""
    try:
        fingerprint = hashlib.sha256(request() + __version__.encode()).hexdigest()
    except BenchError as error:
        problem = str(error)
    visible, facts = len(host.visible_gpus()), host.facts()
    # A single visible GPU is this rank's own (srun --gpus-per-task); otherwise the local rank is its GPU's number.
    device = 0 if visible == 1 else place.local_rank
    return {
        "kind": "handshake",
        "rank": place.rank,
        "world_size": place.world_size,
        "hostname": facts["hostname"],
        "pid": os.getpid(),
        "collbench": __version__,
        "problem": problem,
        "fingerprint": fingerprint,
        "device": device,
        "gpus": visible,
        "gpu": host.gpu_uuid(device),
        "nccl": host.nccl_package(),
        "affinity": host.affinity(),
        "machine": dataclasses.asdict(host.machine()),
        "host": facts,
        "before": host.state(),
    }


def check(handshakes: Sequence[Json]) -> None:
    """Raise JobError unless all processes have the same version, world size and request. handshakes: by rank."""
    first = handshakes[0]
    for other in handshakes:
        if other["problem"]:
            raise JobError(f"{_name(other)}: {other['problem']}")
    for other in handshakes:
        if other["collbench"] != first["collbench"]:
            raise JobError(f"{_name(other)} has CollBench {other['collbench']}, rank 0 has {first['collbench']}")
        if other["world_size"] != first["world_size"]:
            raise JobError(f"{_name(other)} counts {other['world_size']} ranks, rank 0 counts {first['world_size']}")
        if other["fingerprint"] != first["fingerprint"]:
            theirs, ours = (handshake["fingerprint"][:SHOWN_DIGITS] for handshake in (other, first))
            raise JobError(
                f"{_name(other)} has another configuration ({theirs}) than rank 0 on host {first['hostname']} ({ours}):"
                " start all ranks with the same command, and keep the file equal on all hosts"
            )


def _name(handshake: Json) -> str:
    return f"rank {handshake['rank']} on host {handshake['hostname']}"


def check_gpus(handshakes: Sequence[Json]) -> None:
    """Raise JobError if two ranks would use one GPU."""
    owners: dict[str, Json] = {}
    for handshake in handshakes:
        gpu = handshake["gpu"]
        if gpu is not None and (owner := owners.setdefault(gpu, handshake)) is not handshake:
            raise JobError(
                f"ranks {owner['rank']} and {handshake['rank']} on host {handshake['hostname']} would share GPU {gpu}: "
                "start one rank per GPU, and make sure that each knows its local rank or sees a GPU of its own"
            )


def device_of(handshake: Json, share: bool = False) -> int:
    """Return the number of the rank's CUDA device. share: ranks may share devices, so take it modulo their number."""
    return int(handshake["device"]) % max(1, handshake["gpus"]) if share else int(handshake["device"])


# ── the job as a whole ───────────────────────────────────────────────────────────────────────────
def merged(handshakes: Sequence[Json]) -> Machine:
    """Return the job as one `Machine`. Its weakest host sets the limits, because the largest world size includes it.

    The available memory is the memory of the host that has least; the ranks of one host share it.
    """
    machines = [validated(Machine, handshake["machine"]) for handshake in handshakes]
    missing: dict[str, Notice] = {}
    scheduling_missing: dict[str, Notice] = {}
    gpus: list[str] = []
    for handshake, machine in zip(handshakes, machines, strict=True):
        for backend, reason in machine.backends_missing.items():
            named = dataclasses.replace(reason, host=str(handshake["hostname"])) if handshake["rank"] else reason
            missing.setdefault(backend, named)
        scheduling_missing = machine.scheduling_missing | scheduling_missing
    for handshake in handshakes:  # ranks, from rank 0 on, that have a GPU of their own
        if handshake["gpu"] is None or handshake["gpu"] in gpus:
            break
        gpus.append(handshake["gpu"])
    together = hosts(handshakes)
    return Machine(
        hostname=machines[0].hostname,
        cores=sum(len(host["cores"]) for host in together),
        memory_available_bytes=min(machine.memory_available_bytes for machine in machines),
        last_level_cache_bytes=max(machine.last_level_cache_bytes for machine in machines),
        gpus=len(gpus),
        backends_missing=missing,
        scheduling_missing=scheduling_missing,
        ranks=len(handshakes),
        ranks_a_host=max(len(host["ranks"]) for host in together),
        gpu_free_bytes=min((m.gpu_free_bytes for m in machines if m.gpu_free_bytes is not None), default=None),
        gpu_capability=min((m.gpu_capability for m in machines if m.gpu_capability is not None), default=None),
        registered_missing=next(filter(None, (m.registered_missing for m in machines)), None),
        gpu_exclusive=any(machine.gpu_exclusive for machine in machines),
        torch=min((m.torch for m in machines if m.torch is not None), default=None),
    )


def hosts(handshakes: Sequence[Json]) -> list[Json]:
    """Return a record per host, in order of its first rank: the `host.facts` of that host, and its ranks.

    cores: cores on which any rank of the host may run. fewest_cores: lowest number of cores that a rank may use.
    before: `host.state` of the host when it joined the job.
    """
    records: dict[tuple[str, ...], Json] = {}
    for handshake in handshakes:
        facts, cores = handshake["host"], handshake["affinity"]
        # Containers of one host may share a name, and virtual machines of one image share a boot id.
        place = (facts["hostname"], facts["boot_id"], str(facts["torch"]), handshake["nccl"], facts["commit"])
        new = {**facts, "nccl": handshake["nccl"], "before": handshake["before"], "ranks": [], "cores": []}
        record = records.setdefault(place, new)
        both = record["variables"], facts["variables"]  # values that differ between ranks are all kept
        record["variables"] = {name: _joined(*(own.get(name, NOT_SET) for own in both)) for name in both[0] | both[1]}
        record["ranks"].append(handshake["rank"])
        record["cores"] = sorted({*record["cores"], *cores})
        record["fewest_cores"] = min(record.get("fewest_cores", len(cores)), len(cores))
    return list(records.values())


def _joined(values: str, value: str) -> str:
    return values if value in values.split(" / ") else f"{values} / {value}"
