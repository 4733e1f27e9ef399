"""Compare `tune` with the truth: every algorithm of Open MPI, measured in 40 launches, kept in tune_truth.csv.gz.

`python -m proof.tune FOLDER` measures the truth on this machine (an hour). Launches from which a table was made never
judge it.
"""

import csv
import gzip
import json
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from collbench.cli.measuring import source
from collbench.config import models
from collbench.launch.mpirun import MpiLauncher
from collbench.machine import host
from collbench.model.records import Variables
from collbench.packages.tune import catalog, machine
from collbench.packages.tune import planning as rounds_of
from collbench.packages.tune.analyze import choosing, outcome
from collbench.packages.tune.analyze.choosing import Times
from collbench.packages.tune.cli.rounds import TuneRounds, read_state
from collbench.packages.tune.planning import TuneStage
from collbench.packages.tune.rules import DEFAULT, Cell, Pick, Picks, TuneState, choice_of
from collbench.stats.intervals import launch_interval
from collbench.store import folders
from proof.claim import Line, at_least, at_most
from proof.rig import Rig, all_reduces
from proof.virtual_gpu import rig as virtual_gpu

TRUTH = Path(__file__).with_name("tune_truth.csv.gz")
LAUNCHES = 40
CONFIG, SECONDS = "mpi-tune", 0.01
COLUMNS = ("operation", "ranks", "size", "algorithm", "segment", "launch", "mean_s")
LEAST_GAIN = 0.02
# Of the 40 launches, a table of `tune` uses at most RACED for its race and PROVEN for its proof. The remaining launches
# judge it, and every other table, too.
RACED, PROVEN = 3, 24
# Tables of copies per table: a low share of tables with a rule needs many tables to show.
COPIED = 10
JUDGES = range(RACED + PROVEN + 1, LAUNCHES + 1)


# ── the truth ────────────────────────────────────────────────────────────────────────────────────
def collect(root: Path) -> None:
    """Measure every choice of every cell in every launch, in turn, and write the mean times into the truth file."""
    library = catalog.OpenMpi(machine.algorithms())
    rounds, named = _rounds(root, library)
    with rounds.opened([], None):
        rounds.stage(TuneStage("truth", (), 1.0, LAUNCHES, LAUNCHES), lambda done: named)
    assigned = read_state(rounds.path).assigned
    with gzip.open(TRUTH, "wt", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for samples in folders.read(rounds.path).samples:
            if samples.failure is None and samples.timed is not None:
                case, choice = samples.case, choice_of(assigned, samples.case)
                mean_s = float(np.mean(samples.timed.slowest_s))
                cell = case.op, case.world_size, case.size_bytes
                writer.writerow([*cell, choice.algorithm, choice.segment, samples.launch, f"{mean_s:.4g}"])


def _rounds(root: Path, library: catalog.Library, *sets: str) -> tuple[TuneRounds, dict[Cell, list[Pick]]]:
    """Return a new run of the configuration, and the choices of its cells."""
    file = source(Path(CONFIG))
    settings = models.parse(file.raw, file.name, [f"sampling.seconds_per_case={SECONDS}", *sets], file.default_name)
    state = TuneState("mpi", 1e9, LEAST_GAIN, {}, seed=secrets.randbelow(2**32))
    plan, cells = rounds_of.cells(settings, host.machine(), state.seed, library)
    sampling = replace(plan.settings.sampling, warmup_s=SECONDS)
    plan = replace(plan, settings=replace(plan.settings, sampling=sampling), order=())
    path = folders.create(root, plan, file.raw, {"argv": sys.argv, "overrides": [], "collbench": ""})
    return TuneRounds(path, plan, [], state, library, cells, quiet=False), rounds_of.candidates(library, cells)


def truth() -> Times:
    """Read the kept launches: logarithms of mean times."""
    times: Times = {}
    with gzip.open(TRUTH, "rt", newline="") as file:
        for row in csv.DictReader(file):
            cell = Cell(row["operation"], int(row["ranks"]), int(row["size"]))
            choice = Pick(row["algorithm"], segment=int(row["segment"]))
            times.setdefault(cell, {}).setdefault(choice, {})[int(row["launch"])] = float(np.log(float(row["mean_s"])))
    return times


# ── tables made from kept launches ───────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class Table:
    """A table made by a generator."""

    picks: Picks
    # Number of launches, counted per cell and choice, from which the table was made.
    measured: int


def shuffled(times: Times, dice: np.random.Generator, repeated: bool = False) -> Times:
    """Return the launches in random order, numbered from 1. repeated: drawn with replacement."""
    order = dice.choice(np.arange(1, LAUNCHES + 1), LAUNCHES, replace=repeated).tolist()
    return {
        cell: {
            choice: {new: logs[old] for new, old in enumerate(order, 1) if old in logs}
            for choice, logs in choices.items()
        }
        for cell, choices in times.items()
    }


def by_tune(times: Times) -> Table:
    """Make a table as `tune` does: a race, and a proof in new launches."""
    named = {cell: [choice for choice in choices if choice != DEFAULT] for cell, choices in times.items()}
    left, raced, measured = {cell: [DEFAULT, *choices] for cell, choices in named.items()}, 0, 0
    left_by_round = [left]
    while raced < RACED and any(len(choices) > 1 for choices in left.values()):
        measured += sum(len(choices) for choices in left.values() if len(choices) > 1)
        raced += 1
        left = choosing.raced(_measured_in(times, left_by_round, raced), named, raced)
        left_by_round.append(left)
    raced_times = _measured_in(times, left_by_round, raced)
    picks = choosing.picks(raced_times, lambda number: left_by_round[number], raced, LEAST_GAIN)
    proving = range(raced + 1, raced + 1 + PROVEN)
    measured += 2 * PROVEN * sum(choice != DEFAULT for choice in picks.values())
    faster = choosing.faster(choosing.compared(times, picks, proving), LEAST_GAIN)
    table = {cell: choice if cell in faster else DEFAULT for cell, choice in picks.items()}
    return Table(table, measured)


def _measured_in(times: Times, left_by_round: Sequence[Mapping[Cell, Sequence[Pick]]], rounds: int) -> Times:
    """Return the times of a race after `rounds` rounds: per round, the times of the choices left before it."""
    measured: Times = {}
    for number in range(1, rounds + 1):
        for cell, choices in left_by_round[number - 1].items():
            for choice in choices if len(choices) > 1 else ():
                if number in times[cell][choice]:
                    measured.setdefault(cell, {}).setdefault(choice, {})[number] = times[cell][choice][number]
    return measured


@dataclass
class Found:
    """Sums over tables."""

    cells: int = 0
    # Cells with a rule that are slower than the default by more than 2 %.
    slower_by_2: int = 0
    # Cells shown to be slower by the 95 % interval of the judging launches, as 2.5 % of equal choices are: a mean above
    # 1 alone may be chance.
    shown: int = 0
    tables: int = 0
    # Logarithms of the time over the best choice.
    regret: float = 0.0
    measured: float = 0.0

    def add(self, times: Times, table: Table) -> None:
        """Judge a table by launches from which it was not made.

        The best choice is found from all launches but one half of JUDGES, and compared on that half; then vice versa.
        """
        self.tables += 1
        self.measured += table.measured
        halves = (JUDGES[::2], JUDGES[1::2])
        complements = [[n for n in range(1, LAUNCHES + 1) if n not in half] for half in halves]
        for cell, choice in table.picks.items():
            logs = times[cell]
            over = _mean(logs[choice], JUDGES) - _mean(logs[DEFAULT], JUDGES)
            self.cells += 1
            self.slower_by_2 += choice != DEFAULT and bool(over > np.log1p(LEAST_GAIN))
            pairs = [logs[choice][n] - logs[DEFAULT][n] for n in JUDGES if n in logs[DEFAULT] and n in logs[choice]]
            self.shown += choice != DEFAULT and bool(launch_interval(np.exp(pairs)).low > 1)
            for half, complement in zip(halves, complements, strict=True):
                best = min(logs, key=lambda c: _mean(logs[c], complement))
                self.regret += (_mean(logs[choice], half) - _mean(logs[best], half)) / 2


def _mean(logs: Mapping[int, float], numbers: Iterable[int]) -> float:
    return float(np.mean([logs[number] for number in numbers if number in logs]))


def simulated(made_by: Callable[[Times], Table], times: Times, tables: int) -> Found:
    """Make and judge tables from launches in random order."""
    dice, result = np.random.default_rng(0), Found()
    for _ in range(tables):
        order = shuffled(times, dice)
        result.add(order, made_by(order))
    return result


def copies(times: Times, dice: np.random.Generator) -> Times:
    """Return times in which every choice is a copy of the default, with the real scatter of its pairs.

    A copy and the default are interchangeable, so each pair's log ratio, minus its mean, has both signs equally often.
    """
    drawn = shuffled(times, dice, repeated=True)
    return {cell: _copied(drawn[cell], times[cell], dice) for cell in times}


def _copied(drawn: choosing.Logs, full: choosing.Logs, dice: np.random.Generator) -> choosing.Logs:
    """Shift the choices of a cell onto its default."""
    default, moved = drawn[DEFAULT], {DEFAULT: drawn[DEFAULT]}
    for choice, logs in drawn.items():
        if choice != DEFAULT:
            mean = float(np.mean([full[choice][n] - full[DEFAULT][n] for n in full[choice] if n in full[DEFAULT]]))
            common = [n for n in logs if n in default]
            apart = np.array([logs[n] - default[n] - mean for n in common]) * dice.choice((-1.0, 1.0), len(common))
            moved[choice] = {n: default[n] + value for n, value in zip(common, apart.tolist(), strict=True)}
    return moved


# ── claims ───────────────────────────────────────────────────────────────────────────────────────
def on_truth(rig: Rig, trials: int) -> list[Line]:
    """Judge tables of `tune` from kept launches. trials: tables; tables of copies are COPIED times as many."""
    times = truth()
    result = simulated(by_tune, times, trials)
    over = float(np.expm1(result.regret / result.cells))
    dice = np.random.default_rng(1)
    made = (by_tune(copies(times, dice)).picks.values() for _ in range(COPIED * trials))
    copied = sum(any(choice != DEFAULT for choice in picks) for picks in made)
    everything = sum(len(choices) for choices in times.values()) * LAUNCHES
    part = result.measured / result.tables / everything
    return [
        at_most("a cell of a table of `tune` is shown to be slower than the default", result.shown,
                result.cells, 0.01),
        Line("time over the best algorithm, on average over cells", "below 3 %",
             f"{over:.1%}, by {part:.0%} of the launches", "holds" if over < 0.03 else "MISSED"),
        at_most("a table has a rule although its choices are copies of the default", copied,
                COPIED * trials, 0.01),
    ]  # fmt: skip


# Copy of the default → how often its variable is set to its default value.
COPIES = {Pick(f"copy {times}"): times for times in range(1, 6)}


class Copies(catalog.OpenMpi):
    """Open MPI with choices equal to its default: variables are set to their default values, several times."""

    variables = {  # noqa: RUF012 - not a field
        "all_reduce": "OMPI_MCA_coll_tuned_init_chain_fanout",
        "broadcast": "OMPI_MCA_coll_tuned_init_tree_fanout",
    }

    def choices(self, op: str, ranks: int, size: int) -> list[Pick]:
        return [*COPIES]

    def settings(self, picks: Mapping[str, Pick]) -> Variables:
        chosen = [(op, choice) for op, choice in sorted(picks.items()) if choice != DEFAULT]
        return Variables(tuple((self.variables[op], "4") for op, choice in chosen for _ in range(COPIES[choice])))


def real_copies(rig: Rig, trials: int) -> list[Line]:
    """Measure tables whose candidates are copies of the default: 4 rounds of race, 8 of proof. trials: tables."""
    library, changed, tried = Copies({}), 0, 0
    race, proof = TuneStage("race", (), 1.0, 4, 4), TuneStage("proof", ("race",), 1.0, 8, 8)
    # The fork server of this process belongs to the rig, and a process has only one.
    here: Any = SimpleNamespace(facts=dict, launcher=MpiLauncher(rig.launcher))
    for _ in range(trials):
        with tempfile.TemporaryDirectory(prefix="tune-") as root:
            rounds, named = _rounds(Path(root), library, "world_sizes=[2]", "operations=[all_reduce, broadcast]")

            def left_after(number: int) -> dict[Cell, list[Pick]]:
                return outcome.left_after(rounds.samples, rounds.state.assigned, named, number)  # noqa: B023 - called in this pass

            with rounds.opened([], here):
                raced = rounds.stage(race, lambda done: rounds_of.undecided(left_after(done)))
                times = outcome.times_of(rounds.samples, rounds.state.assigned)
                picks = choosing.picks(times, left_after, len(raced), LEAST_GAIN)
                proving = rounds.stage(proof, lambda done: rounds_of.only_tried(picks))  # noqa: B023 - likewise
            table = outcome.proven(rounds.samples, rounds.state.assigned, picks, proving, LEAST_GAIN)
            tried += sum(choice != DEFAULT for choice in picks.values())
            changed += any(choice != DEFAULT for choice in table.values())
    title = "a table has a rule although its candidates are copies of the default"
    return [at_most(title, changed, trials, 0.0, f"; {tried} cells tried one")]


# Microseconds, and bytes per microsecond, of each algorithm and protocol in the rule of virtual GPUs.
RULE = {
    "ring.simple": (20, 400e3), "ring.ll128": (12, 200e3), "ring.ll": (8, 50e3),
    "tree.simple": (22, 240e3), "tree.ll128": (11, 120e3), "tree.ll": (5, 30e3),
    "nvls.simple": (30, 300e3),
}  # fmt: skip
ON_VIRTUAL = all_reduces(
    backends=["nccl"], operations=["all_reduce", "all_gather"], sizes={"from": "4KiB", "to": "16MiB", "factor": 4},
    buffers="reused", sampling={"seconds_per_case": "20ms"}, timeout=None,
)  # fmt: skip


def crossovers(rig: Rig, trials: int) -> list[Line]:
    """Find crossovers of NCCL's choices on virtual GPUs, with latency and bandwidth by rule. trials: tables."""
    title = "a crossover lies within its interval (or within 1 % of it)"
    best = "the choice of a cell is the fastest by the rule, or at most 2 % slower"
    rule: dict[str, object] = {"gpus": 2, "chosen": "ring.simple", "timed_data": 0}
    for place, op in enumerate(("all_reduce", "all_gather")):
        for name, (latency_us, rate) in RULE.items():
            rule[f"latency_us.{op}.{name}"] = latency_us * (1 + place / 10)
            rule[f"bus_gbps.{op}.{name}"] = rate / 1e3 * (1 - place / 20)
    inside, places, over = 0, list[str](), list[float]()
    for _ in range(trials):
        with tempfile.TemporaryDirectory(prefix="virtual-") as name:
            (Path(name) / "c.yaml").write_text(ON_VIRTUAL)
            done = virtual_gpu.run(Path(name), rule, "tune", "c.yaml", "--budget", "4min", timeout=3000)
            assert done.returncode == 0, done.stderr
            (path,) = Path(name).glob("results/*/tuned.json")
            tuned = json.loads(path.read_text())
            over += [_over_best(rule, result) for result in tuned["results"]]
            for place in tuned["crossovers"]:
                true = _crossing(rule, place)
                inside += 0.99 * place["low"] <= true <= 1.01 * place["high"]
                places.append(
                    f"{place['op']} {place['ranks']}: {true:.0f} in {place['low']:.0f} to {place['high']:.0f}"
                )
    right = sum(ratio <= 1 + LEAST_GAIN for ratio in over)
    return [
        at_least(title, inside, len(places), 0.95, places=places),
        at_least(best, right, len(over), 1.0, f"; worst: {max(over) - 1:.1%}"),
    ]


def _crossing(rule: Mapping[str, object], place: Mapping[str, Any]) -> float:
    """Return the bytes at which both choices take the same time by the rule."""
    op, ranks = place["op"], place["ranks"]
    (a, slope_a), (b, slope_b) = (_line(rule, op, ranks, place[side]) for side in ("below", "above"))
    return (b - a) / (slope_a - slope_b)


def _line(rule: Mapping[str, object], op: str, ranks: int, choice: Mapping[str, str]) -> tuple[float, float]:
    """Return the microseconds, and the microseconds per byte, of a choice."""
    name = "ring.simple" if choice["algorithm"] == "default" else f"{choice['algorithm']}.{choice['protocol']}"
    latency_us, gbps = (float(str(rule[f"{key}.{op}.{name}"])) for key in ("latency_us", "bus_gbps"))
    return latency_us, virtual_gpu.wire_bytes(op, 1.0, ranks) / (gbps * 1e3)


def _over_best(rule: Mapping[str, object], result: Mapping[str, Any]) -> float:
    """Return the time of a cell's choice over the time of the fastest choice, by the rule."""
    cell = result["cell"]
    names = [name.split(".") for name in RULE if cell["op"] == "all_reduce" or name.startswith("ring")]
    choices = [result["choice"], *({"algorithm": algorithm, "protocol": protocol} for algorithm, protocol in names)]
    lines = [_line(rule, cell["op"], cell["ranks"], choice) for choice in choices]
    taken = [latency_us + cell["size"] * slope for latency_us, slope in lines]
    return taken[0] / min(taken)


if __name__ == "__main__":
    collect(Path(sys.argv[1]))
