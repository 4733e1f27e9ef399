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
from bench.cli.job import run_task
from bench.cli.measuring import measure
from bench.cli.output import show
from bench.cli.terminal import say
from bench.config import documents, expected, models, names
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
    path = names.path_of(config_file)

    def task(coordinator: "Coordinator | None") -> int:
        settings, raw = models.load(path, sets)
        operation = settings.operations[0]
        if not OPERATIONS[operation].typed:
            raise ConfigError(f"{path}: operations: gate needs a collective on buffers first, not {operation}")
        try:
            allowed, least_rate = parse_share(allow), None if least is None else parse_rate(least)
        except ValueError as error:
            raise ConfigError(f"gate --allow {allow} --least {least}: {error}") from None
        ranks_of_host: dict[str, list[int]] = {}
        handshakes = coordinator.handshakes if coordinator is not None else []
        for handshake in handshakes:
            ranks_of_host.setdefault(handshake["hostname"], []).append(handshake["rank"])
        if coordinator is None or len(ranks_of_host) < 2:
            raise UnmeasurableError(
                "gate compares nodes, and there is one: start it on several hosts "
                "(plan --launcher NAME --nodes N says how)"
            )
        fewest = min(map(len, ranks_of_host.values()))  # as many ranks of each host as the one with fewest has
        fleet = _Fleet(settings, raw, [ranks[:fewest] for ranks in ranks_of_host.values()], coordinator, context.obj)
        if against is not None:
            table = expected.load(names.path_of(against, names.EXPECTED))
            gpus = (gpu for handshake in handshakes for gpu in handshake["host"].get("gpus") or [])
            least_rate = expect.least_of_two_nodes(table, fleet.pair, frozenset(str(gpu.get("name")) for gpu in gpus))
        verdict = fleet.judged(allowed, least_rate)
        hosts = list(ranks_of_host)
        show(findings.gate_document(verdict, hosts))
        content = asdict(verdict)
        for node in content["nodes"]:
            node["host"] = hosts[node["node"]]
        tainted = [hosts[check.node] for check in verdict.nodes if check.verdict == analysis.FAIL]
        folders.write(fleet.folder / VERDICT, json.dumps(content, indent=2) + "\n")
        folders.write(fleet.folder / TAINTED, "".join(f"{name}\n" for name in tainted))
        say(f"\n{fleet.folder / VERDICT}\n{fleet.folder / TAINTED}")
        return 0 if verdict.verdict == analysis.PASS else 1

    given = [*sets, allow, least or "", str(against or "")]
    return run_task(task, lambda: b"\0".join([documents.read(path), *map(str.encode, given)]))


class _Fleet:
    """The nodes of a job, to be measured in groups. folder: of the first stage's run."""

    def __init__(
        self, settings: Config, raw: bytes, ranks: list[list[int]], coordinator: "Coordinator", argv: Sequence[str]
    ) -> None:
        self._settings, self._raw, self._ranks, self._argv = settings, raw, ranks, list(argv)
        self._coordinator = coordinator
        self._seed = settings.seed if settings.seed is not None else secrets.randbelow(2**32)
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
        # Time of a pair of nodes at the bus bandwidth that it must reach.
        usual_s = (operations.busbw(self._case([[0, 1]]), 1.0) or 0.0) / least_rate if least_rate else None
        checks = analysis.judge(taken, again, suspected, nodes, allowed, usual_s)
        for node in self._failed:
            checks[node] = NodeCheck(node, checks[node].score, None, analysis.FAIL, "a rank of it failed")
        sound = [check.node for check in checks if check.verdict != analysis.FAIL]
        groups = self._measured("scale", analysis.levels(sound))
        return analysis.conclude(checks, analysis.judge_groups(groups, taken, nodes, allowed), self._broken)

    def _measured(self, stage: str, rounds: Sequence[Sequence[Sequence[int]]]) -> list[dict[Any, float]]:
        """Seconds of each group of nodes in each round; groups that failed are left out."""
        if not rounds:
            return []
        cases = [self._case(groups) for groups in rounds]
        distinct = list({case.key: case for case in cases}.values())
        machine = self._coordinator.machine(plan.demands(self._settings))
        planned = plan.of_cases(self._settings, machine, self._seed, f"gate-{stage}", distinct)
        facts: Json = {"argv": self._argv, "overrides": [], "collbench": __version__}
        path = folders.create(RESULTS, planned, self._raw, facts)
        if self.folder == Path():
            self.folder = path
        measure(path, False, self._coordinator)
        samples = {entry.case.key: entry for entry in folders.read(path).samples}
        return [self._times(samples[case.key], groups) for case, groups in zip(cases, rounds, strict=True)]

    def _case(self, groups: Sequence[Sequence[int]]) -> Case:
        members = [[rank for node in nodes for rank in self._ranks[node]] for nodes in groups]
        settings = self._settings
        return operations.usual(
            Case(
                settings.operations[0],
                settings.backends[0],
                self._coordinator.place.world_size,
                settings.dtypes[0],
                max(settings.size_list, default=0),
                buffers=settings.buffers,
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
        times_s = {}
        for nodes in groups:
            ranks = [rank for node in nodes for rank in self._ranks[node]]
            slowest = samples.timed.duration_ns[:, ranks].max(axis=1)
            times_s[tuple(nodes)] = float(np.mean(slowest)) / 1e9
        return times_s
