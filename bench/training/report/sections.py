"""Write the sections beside the main tables: order, A/A pairs, advice, invariants, call sizes, what is missing.

In: a `ScenarioAnalysis` or a `TrainingAnalysis`. Out: Markdown; an empty text where there is nothing to say.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median

from bench.catalog.backends import BACKENDS
from bench.model.conclusions import Interval
from bench.model.units import format_bytes, format_rounded_bytes
from bench.report import markdown
from bench.training.conclusions import Advice, ScenarioAnalysis, StrategyResult, TrainingAnalysis
from bench.training.records import InvariantCheck, SkippedStrategy, Strategy
from bench.training.report.labels import NOTHING, bounds, cell, is_reference, names, ordered, seconds, short
from bench.training.strategies import kind, label

# What each invariant says, in the order of docs/training.md.
INVARIANTS = {
    "I1": "ranks hold the same bits after some steps",
    "I2": "training equals that of one process with the whole batch",
    "I3": "exact strategies with the same calls give the same bits",
    "I4": "negative control: without synchronisation ranks differ",
    "I5": "bytes sent are the gradients' bytes, once",
    "I6": "the bucket plan is the one that was carried out",
    "I7": "all ranks launch their calls in the same order",
    "I8": "the parts of exposed communication add up to it",
    "I9": "ranks start from the same parameters",
    "I10": "mean and sum of gradients need the learning rate that theory says",
    "I11": "the sampler gives each rank its share of the data",
    "I12": "shares of the optimizer's state add up to one copy",
}
# Most reasons, or violating strategies, that one cell lists.
MOST_NAMED = 4
PREDICTION = (
    "Predicted from the link and from when gradients become ready; where communication takes CPU time from computing, "
    "it is a lower bound."
)
SHARED_CORES = "; computing and communicating share cores here, so that the size of buckets hardly matters"
NO_STRATEGY = "the run itself"


# ── of one scenario ──────────────────────────────────────────────────────────────────────────────
def ranking(comparison: ScenarioAnalysis) -> str:
    """The order in words: a line for each place, and one for the strategies whose communication is not resolved."""
    timed = [o for o in ordered(comparison) if o.step is not None and not is_reference(o)]
    called = names([o.label for o in comparison.results])
    places: dict[int, list[StrategyResult]] = {}
    for result in timed:
        if result.place is not None:
            places.setdefault(result.place, []).append(result)
    scenario = comparison.scenario
    on_cores = scenario.link is None and BACKENDS[scenario.backend].device == "cpu"
    found = [_place(place, members, called, on_cores) for place, members in places.items()]
    unresolved = [called[o.label] for o in timed if not o.resolved]
    if unresolved:
        found.append(
            f"**not resolved**: the interval of what {', '.join(unresolved)} "
            f"expose{'s' if len(unresolved) == 1 else ''} holds 0"
        )
    found += [_advised(o, called) for o in timed if o.strategy.called and o.strategy.name == "ddp"]
    return markdown.lines(found)


def _advised(result: StrategyResult, called: dict[str, str]) -> str:
    """What the run itself advised, and then measured."""
    cap, sizes = result.strategy.cap_bytes, result.strategy.buckets
    what = f"bucket_cap_mb={cap / 2**20:g}" if cap else f"buckets of {', '.join(map(format_rounded_bytes, sizes))}"
    return f"**{called[result.label]}**: DistributedDataParallel with {what}, as the launches before it advised"


def _place(place: int, members: Sequence[StrategyResult], called: dict[str, str], on_cores: bool) -> str:
    steps = [o.step.value for o in members if o.step]
    if len(members) == 1:
        return f"**{place}.** {called[members[0].label]}: {seconds(steps[0])} a step"
    which = ", ".join(called[o.label] for o in members)
    why = SHARED_CORES if on_cores and _differ_in_buckets(members) else ""
    return f"**{place}.** {which}: {seconds(min(steps))} to {seconds(max(steps))} a step, cannot be told apart{why}"


def _differ_in_buckets(members: Sequence[StrategyResult]) -> bool:
    """Whether several of these send during backward, and differ in what they send when."""
    distinct = {replace(one.strategy, again=0) for one in members}
    return sum(kind(one).overlaps and kind(one).all_reduces and kind(one).sends for one in distinct) > 1


def aa_pairs(comparison: ScenarioAnalysis) -> str:
    """The A/A pairs: what two copies of one strategy differ by."""
    rows = [
        [short(pair.label), seconds(pair.difference.value), bounds(pair.difference), _holds_zero(pair.difference)]
        for pair in comparison.aa_pairs
    ]
    headers = ["strategy, twice", "second − first, a step", "its 95 % interval", "holds 0"]
    return markdown.table(rows, headers, ["left", "right", "right", "left"]) if rows else ""


def _holds_zero(difference: Interval) -> str:
    if not difference.known:
        return NOTHING
    # One in twenty intervals of 95 % misses the true value.
    return "yes" if difference.low <= 0 <= difference.high else "NO (by chance, 1 pair in 20 does not)"


def advice(comparison: ScenarioAnalysis) -> str:
    """The advised plan, the best cap and torch's default: the predicted tail, and what was measured."""
    found = comparison.advice
    if found is None:
        return ""
    measured = _measured(comparison, found)
    rows = [
        [name, which, seconds(one.exposed_s), seconds(one.worst_regret_s), *measured.get(name, [NOTHING, NOTHING])]
        for name, which, one in (
            ("plan", f"{len(found.plan.buckets)} buckets", found.plan),
            ("best uniform cap", format_bytes(found.cap.cap or 0), found.cap),
            ("torch's default", NOTHING, found.default),
        )
    ]
    rows.append(["bound: no plan beats it", NOTHING, seconds(found.bound_s), NOTHING, NOTHING, NOTHING])
    headers = [
        "buckets",
        "which",
        "predicted tail",
        "worst regret",
        "measured tail",
        "exposed communication (comm_time)",
    ]
    table = markdown.table(rows, headers, ["left", "left", *["right"] * 4])
    plan = ", ".join(map(format_rounded_bytes, found.plan.buckets))
    what = {"default": "Leave torch's default", "cap": "Set the cap", "plan": "Set the plan"}[found.advised]
    return f"**{what}.** {PREDICTION} The plan, in the order in which buckets are sent: {plan}.\n\n{table}"


def _measured(comparison: ScenarioAnalysis, found: Advice) -> dict[str, list[str]]:
    """Tail and exposed communication of those strategies of the advice that were measured."""
    default = Strategy("plan", buckets=found.default.buckets) if comparison.scenario.shape else Strategy("ddp")
    wanted = {
        "plan": Strategy("plan", buckets=found.plan.buckets),
        "best uniform cap": Strategy("overlap_bucket", cap_bytes=found.cap.cap),
        "torch's default": default,
    }
    results = {replace(one.strategy, called=""): one for one in comparison.results if one.exposed and one.split}
    return {
        name: [seconds(one.split.tail_s - one.split.late_s), f"{seconds(one.exposed.value)} {bounds(one.exposed)}"]
        for name, strategy in wanted.items()
        if (one := results.get(strategy)) and one.split and one.exposed
    }


# ── of the run ───────────────────────────────────────────────────────────────────────────────────
def invariants(analysis: TrainingAnalysis) -> str:
    """One row for each invariant: how many strategies keep it, which violate it, why it does not apply to others."""
    found = checks(analysis)
    known = [*INVARIANTS, *dict.fromkeys(c.invariant for _, c in found if c.invariant not in INVARIANTS)]
    rows = []
    for name in known:
        mine = [(who, check) for who, check in found if check.invariant == name]
        of = {ok: list(dict.fromkeys(who for who, c in mine if c.ok is ok)) for ok in (True, False, None)}
        # A strategy checked in several launches keeps an invariant if it violates it in none of them.
        held = [who for who in of[True] if who not in of[False]]
        without = [c for who, c in mine if c.ok is None and who not in of[True] and who not in of[False]]
        rows.append(
            [
                name, INVARIANTS.get(name, NOTHING), str(len(held)) if mine else "not checked",
                _listed(f"{who}: {c.text}" for who, c in mine if c.ok is False), _because(without),
            ]
        )  # fmt: skip
    headers = ["invariant", "what must hold", "holds of", "VIOLATED by", "does not apply"]
    return markdown.table(rows, headers, ["left", "left", "right", "left", "left"])


def checks(analysis: TrainingAnalysis) -> list[tuple[str, InvariantCheck]]:
    """Every check with the strategy that was checked; the words name the scenario too where there are several."""
    several = len(analysis.scenarios) > 1
    found = [(NO_STRATEGY, check) for check in analysis.checks]
    for comparison in analysis.scenarios:
        where = f" ({comparison.scenario.key})" if several else ""
        called = names([o.label for o in comparison.results])
        found += [(called[o.label] + where, check) for o in comparison.results for check in o.checks]
    return found


def _because(without: Sequence[InvariantCheck]) -> str:
    count: dict[str, int] = {}
    for check in without:
        count[check.text] = count.get(check.text, 0) + 1
    return _listed(f"{number} × {text}" for text, number in count.items())


def _listed(items: Iterable[str]) -> str:
    found = list(dict.fromkeys(map(cell, items)))
    more = [f"and {len(found) - MOST_NAMED} more"] if len(found) > MOST_NAMED else []
    return "; ".join(found[:MOST_NAMED] + more) or NOTHING


def call_sizes(analysis: TrainingAnalysis) -> str:
    """The call-size sweep: medians over repetitions and launches, and their ratio to the fastest point."""
    pooled: dict[tuple[str, int, int], dict[int, list[float]]] = {}
    for point in analysis.call_sizes:
        rows = pooled.setdefault((point.backend, point.world_size, point.parameters), {})
        rows.setdefault(point.calls, []).extend(point.times_s)
    text = []
    for (backend, world, parameters), rows in pooled.items():
        times = {calls: median(values) for calls, values in sorted(rows.items()) if values}
        best = min(times.values(), default=0.0)
        for calls, time in times.items():
            ratio = f"{time / best:.1f}" if best else NOTHING
            text.append(
                [
                    backend, str(world), f"{parameters:,}", str(calls), f"{parameters / calls:,.0f}", seconds(time),
                    ratio,
                ]
            )  # fmt: skip
    headers = ["backend", "ranks", "parameters", "calls", "parameters a call", "median time", "times the fastest"]
    return markdown.table(text, headers, ["left", *["right"] * 6]) if text else ""


def left_out(analysis: TrainingAnalysis) -> str:
    """What was asked for and not measured: one row for each strategy and reason."""
    reasons: dict[tuple[str, str], list[SkippedStrategy]] = {}
    for left in analysis.skips:
        who = short(label(left.strategy)) if left.strategy else "all strategies"
        reasons.setdefault((who, left.reason), []).append(left)
    rows = [
        [who, _listed(left.scenario.key for left in members), cell(reason)]
        for (who, reason), members in reasons.items()
    ]
    return markdown.table(rows, ["strategy", "scenario", "why"], ["left"] * 3) if rows else ""


def failures(analysis: TrainingAnalysis) -> str:
    """Launches and strategies that did not reach their end."""
    rows = [
        [
            b.scenario, str(b.launch), NOTHING if b.strategy is None else short(b.strategy), b.failure.kind,
            NOTHING if b.failure.rank is None else str(b.failure.rank), cell(b.failure.text),
        ]
        for b in analysis.failures
    ]  # fmt: skip
    return (
        markdown.table(rows, ["scenario", "launch", "strategy", "kind", "rank", "what happened"], ["left"] * 6)
        if rows
        else ""
    )
