"""`ab` on the machine as it is: a planted slowness is found and named, identical sides are not told apart.

Three sizes, 64 KiB, 1 MiB, 16 MiB, at two ranks. The slowness is time spent inside each call, on both ranks, as a share
of the time that the case took before; so scheduling cannot undo it.
"""

import csv
import json
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from proof.claim import Effort, Outcome, counted
from proof.rig import Rig

ROOT = Path(__file__).resolve().parents[1]
THREE = (64 * 2**10, 2**20, 16 * 2**20)
SIX = (16 * 2**10, 64 * 2**10, 256 * 2**10, 2**20, 4 * 2**20, 16 * 2**20)
SWEEP = """
backends: [gloo]
world_sizes: [2]
operations: [all_reduce]
launches: {launches}
sizes: {sizes}
sampling: {{seconds_per_case: 0.2}}
timeout: 60s
"""


@dataclass(frozen=True)
class Answer:
    """What one `ab` said. slower: sizes of the cases that it called SLOWER. pairs, seconds: until it ended."""

    verdict: str
    slower: frozenset[int]
    seconds: float
    pairs: int


def all_by_20(rig: Rig, effort: Effort) -> list[Outcome]:
    return _all(rig, effort, 0.20, "5%", 60, 10, 10)


def all_by_5(rig: Rig, effort: Effort) -> list[Outcome]:
    return _all(rig, effort, 0.05, "5%", 180, 5, 4)


def all_by_2(rig: Rig, effort: Effort) -> list[Outcome]:
    return _all(rig, effort, 0.02, "1%", 600, 3, 2)


def _all(
    rig: Rig, effort: Effort, share: float, min_change: str, budget_s: int, trials: int, needed: int
) -> list[Outcome]:
    trials = max(1, round(trials * effort.ab))
    answers = [_ab(rig, THREE, dict.fromkeys(THREE, share), budget_s, min_change) for _ in range(trials)]
    hits = sum(answer.verdict == "SLOWER" for answer in answers)
    return [
        Outcome(
            f"ab, {share:.0%} planted in all of three sizes: SLOWER within {budget_s} s (--min-change {min_change})",
            f"≥ {needed} of {trials}",
            f"{counted(hits, trials)}; {_told(answers)}",
            hits >= min(needed, trials),
        )
    ]


def one_of_six(rig: Rig, effort: Effort) -> list[Outcome]:
    trials = max(1, round(5 * effort.ab))
    answers = [_ab(rig, SIX, {4 * 2**20: 0.20}, 180, "5%") for _ in range(trials)]
    hits = sum(answer.slower == {4 * 2**20} for answer in answers)
    return [
        Outcome(
            "ab, 20 % planted in one of six sizes: that case and no other is SLOWER within 180 s",
            f"≥ 4 of {trials}",
            f"{counted(hits, trials)}; {_told(answers)}",
            hits >= min(4, trials),
        )
    ]


def identical(rig: Rig, effort: Effort) -> list[Outcome]:
    trials = max(1, round(5 * effort.ab))
    answers = [_ab(rig, THREE, {}, 300, "5%") for _ in range(trials)]
    wrong = sum(answer.verdict in {"SLOWER", "FASTER"} for answer in answers)
    same = sum(answer.verdict == "SAME" for answer in answers)
    told = _told(answers)
    return [
        Outcome(
            "ab of identical sides, 300 s: SLOWER or FASTER", "never", f"{counted(wrong, trials)}; {told}", not wrong
        ),
        Outcome("the same: SAME within 5 %", f"≥ 4 of {trials}", counted(same, trials), same >= min(4, trials)),
    ]


def _told(answers: list[Answer]) -> str:
    found = Counter(answer.verdict for answer in answers)
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in found.most_common())
    seconds = sorted(answer.seconds for answer in answers)
    pairs = sorted(answer.pairs for answer in answers)
    return f"{verdicts}; {seconds[0]:.0f} to {seconds[-1]:.0f} s, {pairs[0]} to {pairs[-1]} pairs"


def _ab(rig: Rig, sizes: tuple[int, ...], shares: dict[int, float], budget_s: int, min_change: str) -> Answer:
    """One `ab` in a folder of its own, through the command line."""
    folder = rig.folder / f"ab-{time.monotonic_ns()}"
    folder.mkdir(parents=True)
    text = SWEEP.format(launches=1, sizes=list(sizes))
    (folder / "a.yaml").write_text(text)
    before = _times(rig, sizes)
    faults = [
        f"{{do: slow, rank: {rank}, size: {size}, delay: {max(1, round(share * before[size] * 1e6))}us}}"
        for size, share in shares.items()
        for rank in (0, 1)
    ]
    command = [sys.executable, str(ROOT / "run_bench.py"), "ab", "a.yaml", "--no-plots"]
    command += ["--b-set", f"faults=[{', '.join(faults)}]", "--budget", f"{budget_s}s", "--min-change", min_change]
    began = time.monotonic()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    took = time.monotonic() - began
    assert done.returncode in {0, 1}, done.stdout + done.stderr
    (path,) = [path for path in (folder / "results").iterdir() if path.is_dir()]
    with (path / "summary.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    slower = frozenset(
        size for size in sizes for row in rows if row["verdict"] == "SLOWER" and _is_of(row["case"], size)
    )
    pairs = max(int(row["pair"]) for row in rows)
    spent = json.loads((path / "manifest.json").read_text())["ab"]["spent_s"]
    return Answer(done.stdout.split(":")[0], slower, min(took, spent), pairs)


def _is_of(case: str, size: int) -> bool:
    unit = f"{size // 2**20} MiB" if size >= 2**20 else f"{size // 2**10} KiB"
    return case.endswith(unit) and case.split(" · ")[-1] == unit


def _times(rig: Rig, sizes: tuple[int, ...]) -> dict[int, float]:
    """Geometric means of the iterations of four launches, just before."""
    run = rig.measure(SWEEP.format(launches=4, sizes=list(sizes)))
    logs: dict[int, list[float]] = {}
    for one in run.samples:
        logs.setdefault(one.case.size_bytes, []).append(float(np.log(one.timed.slowest_s).mean()))
    return {size: float(np.exp(np.mean(values))) for size, values in logs.items()}
