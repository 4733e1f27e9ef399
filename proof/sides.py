"""Run `ab` by its command line on the real machine: planted changes are named, identical sides get no difference.

All-reduces at two ranks. The plant is a fault of side B: within each call, both ranks spin after it for a share of the
time that it took. Ranks share cores, so a bare loop measures what this costs, after the trials.
"""

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from collbench.cli.comparison import compare_sides
from collbench.store import folders
from proof.claim import LIMIT, MISSED, Limit, Line, at_least, at_most
from proof.overhead import cost_of
from proof.rig import Rig, all_reduces

THREE, SIX = ("64KiB", "1MiB", "16MiB"), ("16KiB", "64KiB", "256KiB", "1MiB", "4MiB", "16MiB")
ONE, ONE_BYTES = "4MiB", 4 * 2**20


@dataclass(frozen=True)
class Answer:
    """The result of one `ab`, with its seconds and pairs."""

    verdict: str
    # Sizes of the cases with the verdict SLOWER.
    slower: list[int]
    # B / A of all sizes, or of the one slowed size, with its interval at the last look.
    ratio: tuple[float, float, float]
    seconds: float
    pairs: int


def identical(
    scheduling: str, budget_s: int, share: float, named: Limit, narrow: Limit
) -> Callable[[Rig, int], list[Line]]:
    """Return a claim on identical sides. share: share of the trials that must give SAME; it has the limit `narrow`."""

    def claim(rig: Rig, trials: int) -> list[Line]:
        answers = [_ab(rig, THREE, scheduling, "", budget_s, "5%") for _ in range(trials)]
        wrong = sum(answer.verdict in {"SLOWER", "FASTER"} for answer in answers)
        same = sum(answer.verdict == "SAME" for answer in answers)
        title, each = f"identical sides, {scheduling} scheduling, {budget_s} s", [*map(asdict, answers)]
        never = at_most(f"{title}: SLOWER or FASTER", wrong, trials, 0.0, _note(answers), answers=each)
        often = at_least(f"{title}: SAME within 5 %", same, trials, share)
        return [_limited(never, wrong, trials, named), _limited(often, same, trials, narrow)]

    return claim


def planted(
    only: str | None, scheduling: str, slower_by: str, budget_s: int, min_change: str, share: float, limit: Limit | None
) -> Callable[[Rig, int], list[Line]]:
    """Return a claim on B slowed in `only`, one of SIX sizes; None: in all of THREE. share: of trials that hit."""
    sizes = SIX if only else THREE
    where = f", size: {only}" if only else ""
    faults = ", ".join(f"{{do: slow, rank: {rank}, share: {slower_by}{where}}}" for rank in (0, 1))
    scope = "one of six sizes: it and no other is" if only else "all of three sizes:"
    title = f"{slower_by} in {scope} SLOWER within {budget_s} s, {scheduling} scheduling, --min-change {min_change}"
    cost_title = f"the interval of B / A holds what {slower_by} planted cost a bare loop, {scheduling} scheduling"

    def claim(rig: Rig, trials: int) -> list[Line]:
        answers = [_ab(rig, sizes, scheduling, faults, budget_s, min_change) for _ in range(trials)]
        hits = sum(answer.slower == [ONE_BYTES] if only else answer.verdict == "SLOWER" for answer in answers)
        line = at_least(title, hits, trials, share, _note(answers), answers=[*map(asdict, answers)])
        lines = [_limited(line, hits, trials, limit)]
        if not only:
            cost = cost_of(rig, float(slower_by.rstrip("%")) / 100, scheduling, trials=40)
            held = sum(answer.ratio[1] <= cost <= answer.ratio[2] for answer in answers)
            lines.append(at_least(cost_title, held, trials, share, f"; it cost {cost - 1:+.1%}"))
        return lines

    return claim


def _limited(line: Line, count: int, trials: int, limit: Limit | None) -> Line:
    """Return a missed line as one of a limit, if its count is among those that the limit expects."""
    if limit is None or line.outcome != MISSED or not limit.least * trials <= count <= limit.most * trials:
        return line
    return replace(line, outcome=LIMIT, limit=limit.why)


def _note(answers: list[Answer]) -> str:
    counts = Counter(answer.verdict for answer in answers)
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    seconds, pairs = (sorted(values) for values in zip(*((a.seconds, a.pairs) for a in answers), strict=True))
    ratios = ", ".join(f"{answer.ratio[0]:.3f}" for answer in answers)
    return f"; {verdicts}; {seconds[0]:.0f} to {seconds[-1]:.0f} s, {pairs[0]} to {pairs[-1]} pairs; B / A {ratios}"


def _ab(rig: Rig, sizes: tuple[str, ...], scheduling: str, faults: str, budget_s: int, min_change: str) -> Answer:
    """Run one `ab` in its own folder."""
    folder = rig.folder / f"ab-{time.monotonic_ns()}"
    folder.mkdir(parents=True)
    text = all_reduces(launches=1, scheduling=scheduling, sizes=sizes, sampling={"seconds_per_case": 0.2})
    (folder / "a.yaml").write_text(text)
    command = [sys.executable, "-m", "collbench", "ab", "a.yaml", "--no-plots"]
    command += ["--b", f"faults=[{faults}]", "--budget", f"{budget_s}s", "--min-change", min_change]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    (path,) = (folder / "results").glob("*/")
    assert done.returncode in {0, 1, 3}, done.stdout + done.stderr
    result = compare_sides(path)
    assert result.whole is not None and not result.broken, done.stdout + done.stderr
    slower = [change.case.size_bytes for change in result.changes if change.verdict == "SLOWER"]
    slowed_ratios = [change.ratio for change in result.changes if change.case.size_bytes == ONE_BYTES]
    ratio = slowed_ratios[0] if sizes == SIX else result.whole.ratio
    bounds = (round(ratio.value, 4), round(ratio.low, 4), round(ratio.high, 4))
    return Answer(result.verdict, slower, bounds, folders.read_manifest(path)["ab"]["spent_s"], result.in_turns.pairs)
