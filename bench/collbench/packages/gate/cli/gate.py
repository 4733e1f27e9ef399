"""Define the verb `gate`: is every node good enough? Each stage is a run; the verdict is in the first run's folder."""

import json
import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from collbench.analyze import sessions
from collbench.catalog import collectives
from collbench.cli.app import RESULTS, Quiet, Sets
from collbench.cli.job import run_task
from collbench.cli.measuring import measure
from collbench.cli.output import give
from collbench.cli.terminal import say
from collbench.config import documents, models, names
from collbench.config.models import Config
from collbench.model.divisions import WORLD
from collbench.model.errors import ConfigError, RankError, UnmeasurableError
from collbench.model.notices import Kind, Notice
from collbench.model.records import Case, Failure
from collbench.model.units import format_seconds, parse_rate, parse_share
from collbench.packages.gate import config
from collbench.packages.gate.analyze import nodes as analysis
from collbench.packages.gate.analyze import tables
from collbench.packages.gate.analyze.nodes import Group, Round, Times
from collbench.packages.gate.report import as_json, gate_document, metrics
from collbench.planning import plan
from collbench.report.notices import sentence
from collbench.store import folders

if TYPE_CHECKING:
    from collbench.launch.coordinator import Coordinator

VERDICT, TAINTED, METRICS = "gate.json", "taint.txt", "gate.prom"
ALLOWED = "85%"
EXIT_CODES = {analysis.PASS: 0, analysis.FAIL: 1, analysis.INCONCLUSIVE: 3}
# Most repeats after failures, over all stages; and most failed attempts of one stage that blame no node. Each may take
# as long as a rank may be silent.
MOST_REPEATS, MOST_FRUITLESS = 8, 3
_STAGE = ", in the stage {stage}"
# Kind of failure → notice on a node, without the text of the failure, which numbers ranks within one launch.
FAILED = {
    "killed": Kind("rank-killed", f"one of its ranks was killed{_STAGE}"),
    "exited": Kind("rank-exited", f"one of its ranks exited early{_STAGE}"),
    "raised": Kind("rank-raised", f"one of its ranks raised an error{_STAGE}"),
    "hang": Kind("rank-hung", f"one of its ranks hung{_STAGE}"),
    "wrong": Kind("rank-wrong", f"a result with it was wrong{_STAGE}"),
    "start": Kind("rank-not-ready", f"one of its ranks did not get ready{_STAGE}"),
    "lost": Kind("no-answer", f"it does not answer{_STAGE}"),
}
UNEQUAL_NODES = Kind(
    "unequal-nodes",
    "nodes have {fewest} to {most} ranks: between nodes, the first {fewest} ranks per node were measured",
)
NOT_JOINED = Kind("not-joined", "rank {rank} did not join: its host is unknown, and was not measured")


def gate(
    context: typer.Context,
    config_file: Annotated[
        Path, typer.Argument(help="Its first backend, operation, dtype and largest size.", metavar="CONFIG")
    ],
    sets: Sets = [],  # noqa: B006 - typer reads the default
    allow: Annotated[
        str, typer.Option(help="Demand this share of the usual rate from each node.", metavar="SHARE")
    ] = ALLOWED,
    against: Annotated[
        str | None,
        typer.Option(
            help="Demand this bus bandwidth of two nodes: '250 GB/s', or a table that has it.",
            metavar="RATE|FILE",
        ),
    ] = None,
    quiet: Quiet = False,
) -> int:
    """Start it under a launcher, on several hosts. Exit code 0 PASS, 1 FAIL, 3 INCONCLUSIVE or nothing to compare.

    Writes gate.json, the same for node_exporter into gate.prom, and the names of nodes that fail into taint.txt.
    """

    path = names.path_of(config_file)
    try:
        allowed = parse_share(allow)
        # A rate begins with a digit, and no name of a table does.
        least_rate = parse_rate(against) if against and against[0].isdigit() else None
    except ValueError as error:
        raise ConfigError(f"gate --allow {allow} --against {against}: {error}") from None
    table = config.load(names.path_of(Path(against), names.EXPECTED)) if against and least_rate is None else None

    def task(coordinator: "Coordinator | None") -> int:
        from collbench.launch import compatibility  # here: only measuring needs these two
        from collbench.launch.supervisor import START_ALLOWANCE_S

        settings, raw = models.load(path, sets)
        analysis.check(settings, path)
        handshakes = coordinator.handshakes if coordinator is not None else []
        joined = enumerate(compatibility.hosts(handshakes))
        identities = {rank: (str(host["hostname"]), str(number)) for number, host in joined for rank in host["ranks"]}
        ranks_of_host = sessions.by_host(identities)
        if coordinator is None or len(ranks_of_host) < 2:
            raise UnmeasurableError(
                "gate compares nodes, and this job has one: start it on several hosts "
                "(plan CONFIG --verb gate --launcher NAME --nodes N makes the file)"
            )
        fleet = _Fleet(settings, raw, ranks_of_host, coordinator, context.obj, quiet)
        gpus = frozenset(str(gpu.get("name")) for each in handshakes for gpu in each["host"].get("gpus") or [])
        least = least_rate if table is None else tables.least_of_two_nodes(table, fleet.pair, gpus)
        counts = list(map(len, ranks_of_host.values()))
        usual_s, most_s = analysis.estimates_s(settings, fleet.machine, counts)
        if not quiet:
            hung_s = settings.timeout + START_ALLOWANCE_S
            say(
                f"{fleet.nodes} nodes: about {format_seconds(usual_s)}; up to {format_seconds(most_s)} while nodes are "
                f"undecided, and at most {format_seconds(hung_s)} more for each that hangs"
            )
        # Seconds of a pair of nodes at the bus bandwidth that it must reach.
        least_s = (collectives.busbw(fleet.pair, 1.0) or 0.0) / least if least else None
        verdict = analysis.examine(fleet, allowed, least_s)
        unequal = [UNEQUAL_NODES(fewest=min(counts), most=max(counts))] * (min(counts) < max(counts))
        absent = [NOT_JOINED(rank=rank) for rank in coordinator.absent]
        verdict = replace(
            verdict,
            verdict=analysis.FAIL if absent else verdict.verdict,
            remarks=(*verdict.remarks, *unequal),
            broken=(*absent, *verdict.broken),
            virtual=any(map(sessions.is_virtual_gpu, gpus)),
        )
        hosts = list(ranks_of_host)
        tainted = [hosts[check.node] for check in verdict.nodes if check.verdict == analysis.FAIL]
        files = {
            fleet.folder / VERDICT: json.dumps(as_json(verdict, hosts), indent=2) + "\n",
            fleet.folder / METRICS: metrics(verdict, hosts),
            fleet.folder / TAINTED: "".join(f"{name}\n" for name in tainted),
        }
        give(gate_document(verdict, hosts), files, quiet=quiet)
        return EXIT_CODES[verdict.verdict]

    given = [*sets, allow, against or ""]
    return run_task(task, lambda: b"\0".join([documents.read(path), *map(str.encode, given)]), partial=True)


# A failure, with the round that failed and the ranks of the job that were in it.
_Failed = tuple[Failure, Round, Sequence[int]]
RANK_LOST = Kind("rank-lost", "{text}")
STAGE_FAILED = Kind("stage-failed", "{stage}: {text}")
GIVEN_UP = Kind("given-up", "{stage}: given up")


class _Fleet:
    """The nodes of a job, measured in groups: implements `analysis.Fleet`.

    Rank 0 of the job is in every launch, because it gathers the measurements. If its node is dropped, it has no group.
    """

    def __init__(
        self, settings: Config, raw: bytes, ranks_of_host: Mapping[str, Sequence[int]], coordinator: "Coordinator",
        argv: Sequence[str], quiet: bool,
    ) -> None:  # fmt: skip
        self._settings, self._raw, self._argv, self._quiet = settings, raw, list(argv), quiet
        self._coordinator, self._hosts, self._ranks = coordinator, list(ranks_of_host), list(ranks_of_host.values())
        self._node_of = {rank: node for node, ranks in enumerate(self._ranks) for rank in ranks}
        self._seed = settings.seed if settings.seed is not None else secrets.randbelow(2**32)
        self._dice = random.Random(self._seed)
        self._repeats, self._ended = 0, False
        self._suspicions: list[set[int]] = []
        self.machine = coordinator.machine(plan.demands(settings))
        self.nodes = len(self._ranks)
        self.several: Sequence[int] = [node for node, ranks in enumerate(self._ranks) if len(ranks) > 1]
        self.dropped: dict[int, Notice] = {}
        self.broken: list[Notice] = []
        # Folder of the first stage's run.
        self.folder = Path()

    @property
    def pair(self) -> Case:
        """Return the call of two nodes, as a case with only the ranks of two nodes."""
        case = analysis.case(self._settings, self._coordinator.place.world_size, [self._members((0, 1))])
        return replace(case, world_size=2 * len(self._members((0,))), groups=WORLD)

    def measured(
        self, stage: str, nodes: Sequence[int], rounds_of: Callable[[Sequence[int]], list[Round]]
    ) -> list[Times]:
        """Return the seconds of each group in each round; see `analysis.Fleet`."""
        order, unexplained = list(nodes), list[Notice]()
        while True:
            order = [node for node in order if node not in self.dropped]
            rounds = rounds_of(order)
            if self._ended or not rounds:
                return []
            taken, failures = self._attempt(stage, rounds)
            if not failures:
                self.broken += unexplained
                return taken
            before = len(self.dropped)
            self._ascribe(stage, failures)
            if len(self.dropped) > before:  # this explains the earlier failures, too
                unexplained = []
            else:
                unexplained.append(STAGE_FAILED(stage=stage, text=failures[0][0].text))
            if self._ended or len(unexplained) == MOST_FRUITLESS or self._repeats == MOST_REPEATS:
                self.broken += [*unexplained, GIVEN_UP(stage=stage)]
                return taken
            self._repeats += 1
            self._dice.shuffle(order)  # other partners show which of several nodes is to blame
            say(f"gate: {stage}: once more with {len(set(order) - self.dropped.keys())} nodes", err=True)

    def _attempt(self, stage: str, rounds: Sequence[Round]) -> tuple[list[Times], list[_Failed]]:
        """Measure the rounds once; return the times and the failures."""
        members = sorted({0, *(rank for groups in rounds for group in groups for rank in self._members(group))})
        place = {rank: number for number, rank in enumerate(members)}
        placed = [{group: [place[rank] for rank in self._members(group)] for group in groups} for groups in rounds]
        cases = [analysis.case(self._settings, len(members), list(groups.values())) for groups in placed]
        self._coordinator.launcher.members = tuple(members)
        planned = plan.plan_cases(self._settings, self.machine, self._seed, f"gate-{stage}", cases)
        path = folders.create(RESULTS, planned, self._raw, {"argv": self._argv, "overrides": []})
        if self.folder == Path():
            self.folder = path
        taken: list[Times] = []
        failures: list[_Failed] = []
        try:
            measure(path, False, self._coordinator, after_failure=False, quiet=self._quiet)
        except RankError as error:
            self._ended = error.rank is None  # rank 0 cannot be ended: nothing else should be measured
            failures.append((Failure("start", error.rank or 0, str(error)), rounds[0], members))
        samples = {(entry.case.key, entry.launch): entry for entry in folders.read(path).samples}
        for number, (case, groups) in enumerate(zip(cases, placed, strict=True), 1):
            entry = samples.get((case.key, cases[:number].count(case)))
            if entry is not None and entry.failure is not None:
                failures.append((entry.failure, list(groups), members))
            timed = entry.timed if entry is not None and entry.failure is None else None
            slowest = {} if timed is None else {group: timed.duration_ns[:, ranks] for group, ranks in groups.items()}
            taken.append({group: float(np.mean(ns.max(axis=1))) / 1e9 for group, ns in slowest.items()})
        return taken, failures

    def _members(self, group: Group) -> list[int]:
        """Return the ranks of a group: per node, as many as the smallest node (for one node: of `several`) has."""
        compared = self.several if len(group) == 1 and self.several else range(self.nodes)
        each = min(len(self._ranks[node]) for node in compared)
        return [rank for node in group for rank in self._ranks[node][:each]]

    # ── attributing failures to nodes ────────────────────────────────────────────────────────────
    def _ascribe(self, stage: str, failures: Sequence[_Failed]) -> None:
        """Drop the nodes to which the failures of an attempt are attributed.

        If hosts do not answer, all other failures result from that. Else a node is to blame if it is the only suspect
        of a failure, or the only suspect that failures of two attempts have in common.
        """
        lost = {self._node_of[rank]: text for rank, text in self._coordinator.launcher.workers.lost().items()}
        if lost.keys() - self.dropped.keys():
            for node, text in lost.items():
                self._drop(node, RANK_LOST(text=text))
            return
        suspicions = []
        for failure, groups, members in failures:
            ranks = {*failure.suspects, *(() if failure.rank is None else (failure.rank,))}
            nodes = {self._node_of[members[rank]] for rank in ranks}
            if failure.kind == "wrong":  # the rank that sees a wrong sum need not have caused it
                nodes = {node for group in groups if nodes & set(group) for node in group}
            nodes -= self.dropped.keys()
            suspicions.append(nodes)
            shared = [nodes & earlier for earlier in self._suspicions if len(nodes & earlier) == 1]
            for node in nodes if len(nodes) == 1 else next(iter(shared), set()):
                self._drop(node, FAILED[failure.kind](stage=stage))
        self._suspicions += suspicions

    def _drop(self, node: int, why: Notice) -> None:
        if node not in self.dropped:
            self.dropped[node] = why
            say(f"gate: {self._hosts[node]} is dropped: {sentence(why)}", err=True)
