"""Write the report on training steps: the answer, tables and sentences per scenario, then the invariants.

In: a `ScenarioAnalysis`, or the analysis of a run. Out: blocks and sentences; also the names and numbers that pictures
and comparisons write. Computes nothing but layout. A missing number is a dash, never a zero or `nan`.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from operator import itemgetter

from collbench.model import results
from collbench.model.conclusions import Interval
from collbench.model.projection import KINDS, grouped
from collbench.model.records import Case, InvariantCheck
from collbench.model.units import first_few, format_bytes, format_rounded_bytes, format_share
from collbench.packages.training.catalog.strategies import competes, kind
from collbench.packages.training.conclusions import (
    AAPair,
    Advice,
    ScalingPoint,
    ScenarioAnalysis,
    Split,
    StrategyResult,
)
from collbench.packages.training.synchronisation import (
    REFERENCE,
    Scenario,
    Strategy,
    short_name,
    strategy_in,
    with_strategy,
)
from collbench.report import blocks, labels
from collbench.report.blocks import Blocks, Column, Heading, items, keyed, left, table
from collbench.report.labels import NOTHING, SEPARATOR, interval_text, optional, seconds_text, with_interval

# Statement of each invariant, in the order of docs/training.md.
INVARIANTS = {
    "I1": "ranks have the same bits after some steps",
    "I2": "training gives the same model as one process with the whole batch",
    "I3": "exact strategies with the same calls give the same bits",
    "I4": "negative control: without synchronisation ranks differ",
    "I5": "bytes sent are the gradients' bytes, once",
    "I6": "the calls are the strategy's",
    "I8": "the parts of exposed communication add up to it",
    "I9": "ranks start from the same parameters",
    "I12": "shares of the optimizer's state add up to one copy",
}
# Most reasons, or violating strategies, that one cell lists; most scenarios that the answer covers.
MOST_NAMED, MOST_SCENARIOS = 4, 3
PREDICTION = (
    "Predicted from the link and from when gradients become ready; where communication takes CPU time from computing, "
    "it is a lower bound."
)
NOT_TIMED = "No strategy was timed."
UNRESOLVED = "not resolved"
DEFINITION = (
    "Exposed communication (comm_time) is the time of a step less the time of the same step without synchronisation, "
    "measured in the same launch, in turns, and paired round by round; it may be negative and is never cut off at "
    "zero. A timer around the wait would miss waiting in hooks, in copies, in a device synchronise, or in slower "
    "computing."
)
MEMORY = (
    "Most bytes that torch's allocator gave out until each instant, on the rank with most, for the strategy alone, in "
    "steps that were not timed. Computed: parameters, gradients, states of the optimizer and buckets; activations, or "
    "temporary memory of the update come on top. Not counted: memory of gloo, NCCL and other libraries. On a CPU "
    "right to 3 %: allocations and releases are added up, and the sum is compared with the bytes of malloc. "
    f"{NOTHING}: these differ by more (as for small models, and where libraries release on threads of their own), or "
    "the memory of a library is not known beforehand."
)
SCALING = (
    "Each rank has the same batch. Examples count all ranks together; speed-up is their rate against the step "
    "without synchronisation on the fewest ranks. Efficiency is that step divided by this one: the part missing "
    "to 100 % went into synchronising and into sharing cores, memory and the like."
)


# ── names and numbers ────────────────────────────────────────────────────────────────────────────
def scenario_text(scenario: Scenario) -> str:
    """Return the label that a scenario's cases share: `micro · gloo · float32 · 2 ranks · … · batch 8 a rank · …`."""
    return SEPARATOR.join(scenario_parts(scenario))


def scenario_parts(scenario: Scenario) -> list[str]:
    """Return the parts of the scenario's label."""
    return labels.label_parts(scenario.case)[1:]


def ordered(scenario: ScenarioAnalysis) -> list[StrategyResult]:
    """Return the results: the reference, then by place, then results with a time but no place, then without a time."""

    def key(result: StrategyResult) -> tuple[int, float, float]:
        group = 3 if result.step is None else 0 if is_reference(result) else 1 if result.place else 2
        return group, result.place or 0, result.step.value if result.step else 0

    return sorted(scenario.results, key=key)


def timed(scenario: ScenarioAnalysis) -> list[StrategyResult]:
    """Return the results with a time, in order, without second copies: the A/A pairs show these."""
    return [result for result in ordered(scenario) if result.step is not None and not result.strategy.again]


def is_reference(result: StrategyResult) -> bool:
    """Return whether the result is the reference: the strategy without synchronisation, not its second copy."""
    return result.strategy == Strategy(REFERENCE)


def place_text(result: StrategyResult, scenario: ScenarioAnalysis) -> str:
    """Format the place as `1` or `3 =` (shared); `reference`, or a dash without a place."""
    if is_reference(result):
        return "reference"
    sharing = sum(other.place == result.place for other in scenario.results)
    return NOTHING if result.place is None else f"{result.place} =" if sharing > 1 else str(result.place)


def places(scenario: ScenarioAnalysis) -> list[Column[StrategyResult]]:
    """Return the column of places; none if all strategies share one."""
    differ = len({result.place for result in competing(scenario)}) > 1
    return [left("place", lambda result: place_text(result, scenario))] if differ else []


def percent(value: float | None) -> str:
    """Format a share in percent, `12.3` for 0.123: the unit is in the header."""
    return optional(value, lambda share: f"{round(100 * share, 1) + 0.0:.1f}")  # + 0.0: a rounded −0.0 is 0.0


def spread(value: str, std: str) -> str:
    """Format a value and its standard deviation as `1.61 ms ± 40 µs`."""
    return value if NOTHING in {value, std} else f"{value} ± {std}"


def ends(interval: Interval | None) -> tuple[float, float] | None:
    """Return both limits of an interval; None if it is not known."""
    return (interval.low, interval.high) if interval is not None and interval.known else None


def value_text(interval: Interval | None) -> str:
    """Format the time in the middle of an interval as `1.10 ms`; a dash if there is none."""
    return optional(interval, lambda known: seconds_text(known.value))


def _listed(texts: Iterable[str], separator: str = "; ") -> str:
    """Join distinct texts in one cell, at most the first MOST_NAMED."""
    return first_few([*dict.fromkeys(texts)], MOST_NAMED, separator) or NOTHING


# ── one scenario ─────────────────────────────────────────────────────────────────────────────────
def section(scenario: ScenarioAnalysis, failed: Collection[Case]) -> Blocks:
    """Return the section of a scenario in a report. failed: cases whose failures the report lists elsewhere."""
    bodies = {
        "Memory of a rank": blocks.below(MEMORY, memory(scenario)),
        "What cannot be distinguished": indistinguishable(scenario),
        "Where exposed communication goes": split(scenario),
        "Best buckets": advice(scenario),
    }
    return [
        Heading(scenario_text(scenario.scenario)),
        reference(scenario),
        *overview(scenario),
        *refused(scenario, failed),
        *(block for title, body in bodies.items() for block in blocks.section(title, body, 3)),
        *blocks.fold("A/A pairs: the difference of two copies of a strategy", table(scenario.aa_pairs, AA_PAIRS)),
    ]


def brief_section(scenario: ScenarioAnalysis) -> Blocks:
    """Return the section for a terminal: main table without deviations, shared places, strategies without times."""
    columns: list[Column[StrategyResult]] = [
        left("strategy", lambda result: result.name),
        *places(scenario),
        Column("step_time", lambda result: value_text(result.step)),
        Column("comm_time [95 % interval]", lambda result: with_interval(result.exposed, seconds_text)),
        Column("comm_frac, %", lambda result: percent(result.share)),
    ]
    return [
        Heading(scenario_text(scenario.scenario), 3),
        reference(scenario),
        *(table(timed(scenario), columns) or [NOT_TIMED]),
        *indistinguishable(scenario),
        *refused(scenario),
        *blocks.section("Memory of a rank", memory(scenario), 3),
    ]


def answers(scenarios: Sequence[ScenarioAnalysis]) -> list[str]:
    """For each of the first scenarios, state the fastest strategy, its step and communication time, and buckets."""
    lines = []
    for title, scenario in zip(_titles(scenarios)[:MOST_SCENARIOS], scenarios, strict=False):
        ranked = competing(scenario)
        if not ranked:
            continue
        best = ranked[0]
        level = [result for result in ranked if best.place and result.place == best.place]
        text = f"{title}: " if len(scenarios) > 1 else ""
        if len(level) > 1:
            leaders = "No strategy is faster than another here"
            if len(level) < len(ranked):
                leaders = f"{_listed((r.name for r in level), ', ')} are fastest, and none of them leads"
            text += f"**{leaders}**: {_span(r.step for r in level)} per step"
            costs = _span(r.exposed for r in level)
            text += f"; communication costs {costs} of it" if costs else ""
        else:
            text += f"**{best.name}** is fastest: {value_text(best.step)} per step"
            if best.exposed is not None:
                cost = with_interval(best.exposed, seconds_text)
                text += f"; communication costs {cost} of it" + ("" if best.resolved else ", which may be nothing")
        if scenario.advice is not None:
            text += f". Buckets: {_advised(scenario.advice, scenario)}"
        lines.append(f"{text}.")
    more = len(scenarios) - MOST_SCENARIOS
    return [*lines, *([f"{labels.counted(more, 'further scenario')}: see below."] if more > 0 else [])]


def _advised(advice: Advice, scenario: ScenarioAnalysis) -> str:
    """Return the advised buckets with their predicted tail, or the strategy with a smaller measured tail."""
    default = seconds_text(advice.default.tail_s)
    tails = [(r.split.tail_s, r.name) for r in scenario.results if r.split is not None and r.strategy.cap_bytes]
    least_s, name = min(tails, default=(math.inf, ""))
    if advice.advised and least_s < advice.cap.tail_s:
        return (
            f"keep {name}, which was measured to leave {seconds_text(least_s)} after backward; no cap is predicted to "
            f"leave less (best: {format_bytes(advice.cap_bytes)}, {seconds_text(advice.cap.tail_s)})"
        )
    if not advice.advised:
        return f"leave torch's default, which is predicted to leave {default} after backward"
    return (
        f"set a cap of {format_bytes(advice.cap_bytes)}, predicted to leave {seconds_text(advice.cap.tail_s)} after "
        f"backward (torch's default: {default})"
    )


def _titles(scenarios: Sequence[ScenarioAnalysis]) -> list[str]:
    """Return the title of each scenario, without the parts that all scenarios share."""
    return labels.common_parts([scenario_parts(scenario.scenario) for scenario in scenarios])[1]


def reference(scenario: ScenarioAnalysis) -> str:
    """Return one line: the step without synchronisation, the timed blocks used, and the A/A noise."""
    without = f"{seconds_text(scenario.compute.value)} per step" if scenario.compute else "not known"
    used = scenario.blocks - scenario.dropped
    limit = "no strategy was measured twice"
    if scenario.aa_pairs:
        limit = f"two copies of one strategy differ by up to {seconds_text(scenario.noise_s)} per step"
    return f"Computing without synchronisation: {without} · {used} of {scenario.blocks} timed blocks used · {limit}"


def competing(scenario: ScenarioAnalysis) -> list[StrategyResult]:
    """Return the timed strategies that may be chosen, by place, then by time."""
    chosen = [result for result in timed(scenario) if competes(result.strategy)]
    return sorted(chosen, key=lambda result: (result.place or math.inf, result.step.value if result.step else 0.0))


def _span(intervals: Iterable[Interval | None]) -> str:
    """Format the smallest and the largest value as `1.00 – 1.20 ms`; empty without values."""
    values = sorted(interval.value for interval in intervals if interval is not None)
    return labels.between(seconds_text(values[0]), seconds_text(values[-1])) if values else ""


def overview(scenario: ScenarioAnalysis) -> Blocks:
    """Return one row per timed strategy, by place: estimate ± standard deviation over rounds."""

    columns: list[Column[StrategyResult]] = [
        left("strategy", lambda result: result.name),
        *places(scenario),
        Column("step_time ± std", lambda result: spread(value_text(result.step), seconds_text(result.step_std))),
        Column("comm_time ± std", lambda result: spread(value_text(result.exposed), seconds_text(result.exposed_std))),
        Column("its 95 % interval", lambda result: interval_text(result.exposed, seconds_text)),
        Column("comm_frac ± std, %", lambda result: spread(percent(result.share), percent(result.share_std))),
    ]
    if any(result.resolved for result in timed(scenario)):
        columns.append(Column("hidden, %", lambda result: percent(result.hidden) if result.resolved else NOTHING))
    return table(timed(scenario), columns) or [NOT_TIMED]


def refused(scenario: ScenarioAnalysis, elsewhere: Collection[Case] = ()) -> Blocks:
    """Return the strategies without times, with reasons, except strategies whose failures are listed elsewhere."""
    return items(
        f"**{result.name}** got no times: {result.refused}"
        for result in ordered(scenario)
        if result.refused and result.case not in elsewhere
    )


def indistinguishable(scenario: ScenarioAnalysis) -> Blocks:
    """Return a line per place that several strategies share, unless all do, and lines on those not resolved."""
    chosen = competing(scenario)
    lines = []
    for place, members in grouped(chosen, lambda result: result.place).items():
        if place is not None and 1 < len(members) < len(chosen):
            steps = [result.step.value for result in members if result.step]
            listed = ", ".join(result.name for result in members)
            lines.append(
                f"**place {place}**: {listed}: {seconds_text(min(steps))} to {seconds_text(max(steps))} per step"
            )
    for text, known in (("the interval of comm_time includes 0", True), ("comm_time has no interval", False)):
        if unresolved := [r for r in chosen if not r.resolved and (ends(r.exposed) is not None) is known]:
            lines.append(f"**{UNRESOLVED}**: {text}: {', '.join(result.name for result in unresolved)}")
    return items(lines)


def split(scenario: ScenarioAnalysis) -> Blocks:
    """Return the parts of exposed communication, one row per strategy with a split."""
    sharded = any(kind(result.strategy).sharded for result in scenario.results)
    parts = [(part.fact.title, part) for part in results.columns(Split) if sharded or part.fact.name != "gather_s"]
    columns: list[Column[StrategyResult]] = [
        left("strategy", lambda result: result.name),
        Column("calls per step", lambda result: NOTHING if result.calls is None else str(len(result.calls))),
        Column("comm_time", lambda result: value_text(result.exposed)),
        *keyed(parts, lambda result, part: seconds_text(part.of(result.split))),
        Column("calls alone", lambda result: seconds_text(result.calls_alone_s)),
        left("adds up", lambda result: {True: "yes", False: "NO", None: NOTHING}[result.adds_up]),
    ]
    return table([result for result in timed(scenario) if result.split is not None], columns)


def memory(scenario: ScenarioAnalysis) -> Blocks:
    """Return the memory of each strategy alone, measured and computed; empty if it was not measured."""
    results = timed(scenario)
    instants = {
        "model made": "initial_bytes",
        "before the first update": "before_bytes",
        "after it": "after_bytes",
        "further steps": "peak_bytes",
    }
    columns: list[Column[StrategyResult]] = [
        left("strategy", lambda result: result.name),
        *keyed(
            instants.items(),
            lambda result, instant: optional(getattr(result.memory, instant, None), format_rounded_bytes),
        ),
        Column("computed", lambda result: optional(result.computed_bytes, format_rounded_bytes)),
    ]
    return table(results if any(result.memory for result in results) else [], columns)


def _zero_cell(difference: Interval) -> str:
    """State whether the interval contains 0; a dash without an interval. One in twenty 95 % intervals does not."""
    if not difference.known:
        return NOTHING
    return "yes" if difference.low <= 0 <= difference.high else "NO (by chance, 1 pair in 20 does not)"


AA_PAIRS: list[Column[AAPair]] = [
    left("strategy, twice", lambda pair: short_name(pair.strategy)),
    Column("second − first, per step", lambda pair: seconds_text(pair.difference.value)),
    Column("its 95 % interval", lambda pair: interval_text(pair.difference, seconds_text)),
    left("includes 0", lambda pair: _zero_cell(pair.difference)),
]


def advice(scenario: ScenarioAnalysis) -> Blocks:
    """Return the predicted and measured tails of the best cap and of torch's default, then the lower bound."""
    advised = scenario.advice
    if advised is None:
        return []
    default = Strategy("plan", buckets=advised.default.buckets) if scenario.scenario.shape else Strategy("ddp")
    # Buckets that were advised during planning are measured as a plan with these buckets.
    by_cap = [Strategy("overlap_bucket", cap_bytes=advised.cap_bytes), Strategy("plan", buckets=advised.cap.buckets)]
    results = {replace(result.strategy, called=""): result for result in scenario.results if result.split}

    def measured(strategies: Sequence[Strategy]) -> StrategyResult | None:
        return next((results[strategy] for strategy in strategies if strategy in results), None)

    rows: list[tuple[str, Sequence[float | None], StrategyResult | None]] = [
        (f"cap of {format_bytes(advised.cap_bytes)}", advised.cap.tails_s, measured(by_cap)),
        ("torch's default", advised.default.tails_s, measured([default])),
        ("bound: no plan beats it", (advised.bound_s, None, None), None),
    ]
    off = format_share(advised.off)
    links = [("predicted tail", 0), (f"on a link {off} slower", 1), (f"{off} faster", 2)]
    columns: list[Column[tuple[str, Sequence[float | None], StrategyResult | None]]] = [
        left("buckets", lambda row: row[0]),
        *keyed(links, lambda row, link: seconds_text(row[1][link])),
        Column(
            "measured tail", lambda row: seconds_text(row[2].split.last_rank_s if row[2] and row[2].split else None)
        ),
        Column(
            "exposed communication (comm_time)",
            lambda row: with_interval(row[2].exposed if row[2] else None, seconds_text),
        ),
    ]
    what = "Set the cap" if advised.advised else "Leave torch's default"
    return [f"**{what}.** {PREDICTION}", *table(rows, columns)]


# ── all of a run ─────────────────────────────────────────────────────────────────────────────────
def invariants(scenarios: Sequence[ScenarioAnalysis]) -> Blocks:
    """Return one row per invariant: number of strategies that keep it, violations, reasons why it does not apply."""
    checks = []
    for title, scenario in zip(_titles(scenarios), scenarios, strict=True):
        where = f" ({title})" if len(scenarios) > 1 else ""
        # A second copy counts only if it violates an invariant.
        results = [result for result in scenario.results if result.refused or not result.strategy.again]
        checks += [(result.name + where, check) for result in results for check in result.checks]
    kinds = dict.fromkeys([*INVARIANTS, *(check.invariant for _, check in checks)])
    rows = [_invariant_row(kind, [pair for pair in checks if pair[1].invariant == kind]) for kind in kinds]
    return table(rows, [left(header, itemgetter(number)) for number, header in enumerate(INVARIANT_HEADERS)])


INVARIANT_HEADERS = ("invariant", "requirement", "valid for", "VIOLATED by", "does not apply")


def _invariant_row(invariant: str, checks: Sequence[tuple[str, InvariantCheck]]) -> list[str]:
    """Return the cells of an invariant. checks: names of strategies, and their checks of it in all launches."""
    violations = {f"{name}: {check.text}": name for name, check in checks if check.ok is False}
    kept = {name for name, check in checks if check.ok} - {*violations.values()}
    judged = {name for name, check in checks if check.ok is not None}
    reasons = Counter(check.text for name, check in checks if name not in judged)
    return [
        invariant,
        INVARIANTS.get(invariant, NOTHING),
        str(len(kept)) if checks else "not checked",
        _listed(violations),
        _listed(f"{count} × {text}" for text, count in reasons.items()),
    ]


def scaling(points: Sequence[ScalingPoint]) -> Blocks:
    """Return throughput, speed-up and efficiency over numbers of ranks, one table per model, backend and so on."""
    scenarios = KINDS.tables(points, lambda point: with_strategy(point.case, None))
    titles = [
        SEPARATOR.join(part.words for part in parts if part.name != "op" and not part.usual)
        for parts in labels.case_parts(list(scenarios))
    ]
    titled = zip(titles, scenarios.values(), strict=True)
    tables = [block for title, rows in titled for block in [f"**{title}**", *table(rows, SCALED)]]
    return [*tables, SCALING] if tables else []


def _efficiency(point: ScalingPoint) -> str:
    if point.efficiency is None:
        return f"100 (base: {labels.ranks_text(point.base_ranks)})"
    return with_interval(point.efficiency, percent)


SCALED: list[Column[ScalingPoint]] = [
    left("strategy", lambda point: short_name(strategy_in(point.case))),
    Column("ranks", lambda point: str(point.case.world_size)),
    Column("step_time", lambda point: seconds_text(point.step.value)),
    Column("examples/s", lambda point: f"{point.examples_per_s.value:.3g}"),
    Column("speed-up", lambda point: f"{point.speed_up:.2f}"),
    Column("efficiency, %", _efficiency),
]
