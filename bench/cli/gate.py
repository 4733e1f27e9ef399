"""The verb `gate`: is every node of a job good enough? Each stage is a run; the first one's folder has the verdict."""

import json
import secrets
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from bench import __version__
from bench.analyze import expect
from bench.analyze import gate as analysis
from bench.catalog import operations, subgroups
from bench.catalog.operations import OPERATIONS
from bench.cli.app import RESULTS, Sets
from bench.cli.benchmarks import COLLECTIVES
from bench.cli.job import run_task
from bench.cli.measuring import measure
from bench.cli.output import show
from bench.config import documents, expected, models, shipped
from bench.config.models import Config
from bench.model.comparisons import GateVerdict, NodeCheck
from bench.model.errors import ConfigError, UnmeasurableError
from bench.model.records import Case, Json, Samples
from bench.model.units import parse_rate, parse_share
from bench.planning import plan
from bench.report import findings
from bench.store import folders

if TYPE_CHECKING:
    from bench.launch.coordinator import Coordinator

VERDICT, TAINTED = "gate.json", "taint.txt"
ALLOWED = "85%"


def gate(
    context: typer.Context,
    config_file: Annotated[
        Path, typer.Argument(help="Its first backend, operation, dtype and largest size.", metavar="CONFIG")
    ],
    sets: Sets = [],  # noqa: B006 - typer reads the default
    allow: Annotated[
        str, typer.Option(help="Share of the usual rate that a node must reach.", metavar="SHARE")
    ] = ALLOWED,
    least: Annotated[
        str | None, typer.Option(help="Bus bandwidth that two nodes must reach, such as '250 GB/s'.", metavar="RATE")
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="Or a table (configs/expected/…) that has it for two nodes.", metavar="FILE")
    ] = None,
) -> int:
    """Start it under a launcher, on several hosts. Exit code 0 PASS, 1 FAIL or INCONCLUSIVE, 3 on one host.

    Writes gate.json, and the names of nodes that fail into taint.txt.
    """

    if least is not None and against is not None:
        raise ConfigError("gate: --least or --against, not both")
    path = shipped.path_of(config_file)

    def task(coordinator: "Coordinator | None") -> int:
        return _gate(path, sets, allow, (least, against), coordinator, context.obj)

    given = [*sets, allow, least or "", str(against or "")]
    return run_task(task, lambda: b"\0".join([documents.read(path), *map(str.encode, given)]))


def _gate(
    file: Path,
    sets: list[str],
    allow: str,
    wanted: tuple[str | None, Path | None],
    coordinator: "Coordinator | None",
    argv: Sequence[str],
) -> int:
    asked, raw = models.load(file, sets)
    if not OPERATIONS[asked.operations[0]].typed:
        raise ConfigError(f"{file}: operations: gate needs a collective on buffers first, not {asked.operations[0]}")
    allowed, least_rate = _share(allow), _rate(wanted[0])
    hosts = _hosts(coordinator)
    if coordinator is None or len(hosts) < 2:
        raise UnmeasurableError(
            "gate compares nodes, and there is one: start it on several hosts (plan --launcher NAME --nodes N says how)"
        )
    fleet = _Fleet(asked, raw, hosts, coordinator, argv)
    if wanted[1] is not None:
        least_rate = expect.least_of_two_nodes(
            expected.load(shipped.path_of(wanted[1], shipped.EXPECTED)), fleet.pair, _gpus(coordinator)
        )
    verdict = fleet.judged(allowed, least_rate)
    names = list(hosts)
    show(findings.gate_document(verdict, names))
    typer.echo("\n" + "\n".join(map(str, _written(fleet.folder, verdict, names))))
    return 0 if verdict.verdict == analysis.PASS else 1


def _share(given: str) -> float:
    try:
        return parse_share(given)
    except ValueError as error:
        raise ConfigError(f"--allow {given}: {error}") from None


def _rate(given: str | None) -> float | None:
    try:
        return None if given is None else parse_rate(given)
    except ValueError as error:
        raise ConfigError(f"--least {given}: {error}") from None


def _gpus(coordinator: "Coordinator") -> frozenset[str]:
    """Names of the GPUs of all hosts."""
    hosts = [one["host"] for one in coordinator.handshakes]
    return frozenset(str(gpu.get("name")) for one in hosts for gpu in one.get("gpus") or [])


def _hosts(coordinator: "Coordinator | None") -> dict[str, list[int]]:
    """Host → its ranks; as many of each as the host with fewest has."""
    found: dict[str, list[int]] = {}
    for one in coordinator.handshakes if coordinator is not None else []:
        found.setdefault(one["hostname"], []).append(one["rank"])
    fewest = min(map(len, found.values()), default=0)
    return {name: ranks[:fewest] for name, ranks in found.items()}


class _Fleet:
    """The nodes of a job, to be measured in groups. folder: of the first stage's run."""

    def __init__(
        self, asked: Config, raw: bytes, hosts: dict[str, list[int]], coordinator: "Coordinator", argv: Sequence[str]
    ) -> None:
        self._asked, self._raw, self._ranks, self._argv = asked, raw, list(hosts.values()), list(argv)
        self._coordinator = coordinator
        self._seed = asked.seed if asked.seed is not None else secrets.randbelow(2**32)
        self._broken: list[str] = []
        self._failed: set[int] = set()
        self.folder = Path()

    @property
    def pair(self) -> Case:
        """What is measured, of two nodes."""
        return replace(self._case([[0, 1]]), world_size=len(self._ranks[0]) * 2, groups="world")

    def judged(self, allowed: float, least_rate: float | None) -> GateVerdict:
        """Measure as far as needed, and conclude."""
        nodes = len(self._ranks)
        taken = self._measured("look", analysis.looks(nodes))
        suspected = analysis.suspects(taken, nodes, allowed)
        again = self._measured("retest", analysis.retests(nodes, suspected)) if suspected else []
        usual_s = None if least_rate is None else self._seconds_at(least_rate)
        checks = analysis.judge(taken, again, suspected, nodes, allowed, usual_s)
        for node in self._failed:
            checks[node] = NodeCheck(node, checks[node].score, None, analysis.FAIL, "a rank of it failed")
        sound = [one.node for one in checks if one.verdict != analysis.FAIL]
        groups = self._measured("scale", analysis.levels(sound))
        return analysis.conclude(checks, analysis.judge_groups(groups, taken, nodes, allowed), self._broken)

    def _measured(self, stage: str, rounds: Sequence[Sequence[Sequence[int]]]) -> list[dict[Any, float]]:
        """Seconds of each group of nodes in each round; groups that failed are left out."""
        if not rounds:
            return []
        cases = [self._case(groups) for groups in rounds]
        distinct = list({case.key: case for case in cases}.values())
        machine = self._coordinator.machine(plan.demands(self._asked))
        planned = plan.of_cases(self._asked, machine, self._seed, f"gate-{stage}", distinct)
        facts: Json = {"argv": self._argv, "overrides": [], "collbench": __version__}
        path = folders.create(RESULTS, COLLECTIVES.codec.value, planned, self._raw, facts)
        if self.folder == Path():
            self.folder = path
        measure(COLLECTIVES, path, False, self._coordinator)
        samples = {one.case.key: one for one in COLLECTIVES.read(path).samples}
        return [self._times(samples[case.key], groups) for case, groups in zip(cases, rounds, strict=True)]

    def _case(self, groups: Sequence[Sequence[int]]) -> Case:
        members = [[rank for node in nodes for rank in self._ranks[node]] for nodes in groups]
        asked = self._asked
        return operations.usual(
            Case(
                asked.operations[0],
                asked.backends[0],
                self._coordinator.place.world_size,
                asked.dtypes[0],
                max(asked.size_list, default=0),
                buffers=asked.buffers,
                groups=subgroups.in_text(members),
            )
        )

    def _times(self, samples: Samples, groups: Sequence[Sequence[int]]) -> dict[Any, float]:
        if samples.failure is not None or samples.timed is None:
            failure = samples.failure
            if failure is not None:
                self._broken.append(failure.text)
                self._failed |= {n for n, ranks in enumerate(self._ranks) if failure.rank in ranks}
            return {}
        found = {}
        for nodes in groups:
            ranks = [rank for node in nodes for rank in self._ranks[node]]
            slowest = samples.timed.duration_ns[:, ranks].max(axis=1)
            found[tuple(nodes)] = float(np.median(slowest)) / 1e9
        return found

    def _seconds_at(self, rate: float) -> float:
        """Time of a pair of nodes at this bus bandwidth."""
        case = self._case([[0, 1]])
        of_one_second = operations.busbw(case, 1.0)
        return (of_one_second or 0.0) / rate


def _written(folder: Path, verdict: GateVerdict, names: Sequence[str]) -> list[Path]:
    tainted = [names[one.node] for one in verdict.nodes if one.verdict == analysis.FAIL]
    told = asdict(verdict)
    for one in told["nodes"]:
        one["host"] = names[one["node"]]
    folders.write(folder / VERDICT, json.dumps(told, indent=2) + "\n")
    folders.write(folder / TAINTED, "".join(f"{name}\n" for name in tainted))
    return [folder / VERDICT, folder / TAINTED]
