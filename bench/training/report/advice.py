"""Write the advice, with code to paste, and the predicted beside the measured times of bucket plans.

In: an `ExplainedAdvice`; `Verified` plans. Out: blocks. Computes and judges nothing.

The Python code is run on two ranks of gloo by tests/test_advise.py, but for what needs NCCL.
"""

import itertools
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence

from bench.model.units import format_rounded_bytes, format_seconds, format_share
from bench.report.blocks import Blocks, Code, Column, Heading, items, keyed, left, section, table
from bench.report.labels import NOTHING
from bench.report.screen import NO_BREAK
from bench.training.conclusions import (
    OFF_S,
    OFF_SHARE,
    WORTH,
    ExplainedAdvice,
    PlanPrediction,
    ScenarioAnalysis,
    Verified,
    Way,
)
from bench.training.report.steps import bounds, scenario_text, seconds

# Columns of code.
COLUMNS = 78
HOLDS = {True: "yes", False: "NO", None: "not measured"}
# Most rows in the table of buckets, and most buckets that code compares one by one.
MOST_BUCKETS = 6
# Shorter times than this share of a step are not printed.
VISIBLE = 0.001

LIMITS = {
    True: "Here communicating takes CPU time from computing: the times above are lower bounds, and on few cores bucket "
    "sizes do not matter. Measure it with --verify.",
    False: "That computing slows down while the GPU communicates is not in these times.",
    None: "That computing slows down while communicating is not in these times; on CPUs they are lower bounds.",
}


def document(explained: ExplainedAdvice) -> Blocks:
    """The whole text."""
    advice, backward = explained.advice, format_seconds(explained.backward_s)
    worth, other = _worth(explained), advice.advised != "default"
    number, size = sum(len(bucket.members) for bucket in explained.buckets), format_rounded_bytes(explained.total)
    latency, rate, length = map(format_share, advice.box)
    to_type: Blocks = [Code(ddp_code(explained, worth), "python")] if worth or other else []
    return [
        Heading(f"Advice for {explained.model}", 1),
        f"{number} gradients, {size}; backward {backward}, forward taken to last half as long; {explained.link}.",
        f"**{_answer(explained, worth)}** {_bound_by(explained)}",
        Heading("Buckets: what each plan leaves after backward (the tail)"),
        *_plans(explained),
        f"Regret: above the best plan there, within {latency}/{rate}/{length} of latency/rate/backward.",
        *(_buckets(explained) if other else []),
        *section("What saves more, each alone", [*_ways(explained, worth), *_others(explained, worth)]),
        *section("What to type", to_type),
        *section("To know", items([LIMITS[explained.cpu], _ranks(explained), *explained.notes])),
    ]


def _answer(explained: ExplainedAdvice, worth: Mapping[str, Way]) -> str:
    """What to do about buckets, and which other way saves most."""
    advice = explained.advice
    default, chosen = _time(explained, advice.default.exposed_s), _time(explained, advice.chosen.exposed_s)
    what = {
        "default": f"Leave torch's default, which leaves {default}: no cap and no plan saves "
        f"{format_share(WORTH)} of a step without a loss elsewhere.",
        "cap": f"Set a cap of {explained.cap_mib:g} MiB: it leaves {chosen}, where torch's default leaves {default}.",
        "plan": f"Set the plan below: it leaves {chosen}, where torch's default leaves {default}.",
    }[advice.advised]
    most = next(iter(worth.values()), None)
    if most is None:
        return what
    more = "Most" if advice.advised == "default" else "Most of what is left"
    return f"{what} {more} is saved by {_title(most, _hook(explained))}: {format_share(most.saved, 1)} of a step."


def _bound_by(explained: ExplainedAdvice) -> str:
    backward = format_seconds(explained.backward_s)
    if explained.bytes_s > explained.backward_s:
        return (
            f"Communication-bound: the bytes alone take {format_seconds(explained.bytes_s)} and backward {backward}, "
            "so no plan hides them all."
        )
    bytes_ = _time(explained, explained.bytes_s)
    return f"Not communication-bound: the bytes alone take {bytes_} of the {backward} of backward."


def _ranks(explained: ExplainedAdvice) -> str:
    ranks = "the ranks of the link" if explained.ranks is None else f"{explained.ranks} ranks"
    return f"All this holds for {ranks}; nothing is forecast for others."


def _time(explained: ExplainedAdvice, seconds: float) -> str:
    """Seconds, or that they are too few to be seen in a step."""
    least = VISIBLE * explained.step_s
    return format_seconds(seconds) if seconds >= least else f"< {format_seconds(least)}"


def _saved(explained: ExplainedAdvice, seconds: float) -> str:
    share = seconds / explained.step_s
    return format_share(share, 1) if abs(share) >= VISIBLE else NOTHING


def _plans(explained: ExplainedAdvice) -> Blocks:
    """One row for each plan; last the bound."""
    default = explained.advice.default.exposed_s
    # None: the bound of all plans, which has no buckets.
    rows = [*explained.predictions, ("lower bound of all plans", None)]

    def of_plan(text: Callable[[PlanPrediction], str]) -> Callable[[tuple[str, PlanPrediction | None]], str]:
        return lambda row: "" if row[1] is None else text(row[1])

    columns: list[Column[tuple[str, PlanPrediction | None]]] = [
        left("plan", lambda row: row[0]),
        Column("buckets", of_plan(lambda plan: str(len(plan.buckets)))),
        Column("largest", of_plan(lambda plan: format_rounded_bytes(max(plan.buckets)))),
        Column("tail", lambda row: _time(explained, explained.advice.bound_s if row[1] is None else row[1].exposed_s)),
        Column("saves", of_plan(lambda plan: _saved(explained, default - plan.exposed_s))),
        Column("worst regret", of_plan(lambda plan: _time(explained, plan.worst_regret_s))),
    ]
    return table(rows, columns)


def _buckets(explained: ExplainedAdvice) -> Blocks:
    """One row for each bucket, in the order in which they are sent; of a long plan only the first and the last ones."""
    rows = []
    for number, bucket in enumerate(explained.buckets, start=1):
        instants = [_time(explained, instant) for instant in (bucket.ready_s, bucket.start_s, bucket.done_s)]
        rows.append([str(number), format_rounded_bytes(bucket.nbytes), str(len(bucket.members)), *instants])
    if len(rows) > MOST_BUCKETS:
        half = MOST_BUCKETS // 2
        rows[half:-half] = [[f"{len(rows) - MOST_BUCKETS} more", *[""] * 5]]
    headers = ["bucket", "size", "gradients", "ready at", "starts at", "through at"]
    numbers = [(header, number) for number, header in enumerate(headers)]
    return table(rows, keyed(numbers, lambda row, number: row[number]))


# ── other settings ───────────────────────────────────────────────────────────────────────────────
def _worth(explained: ExplainedAdvice) -> dict[str, Way]:
    """What gets code, by name; the best first."""
    return {way.name: way for way in sorted(explained.ways, key=lambda way: -way.saved) if way.worth}


def _ways(explained: ExplainedAdvice, worth: Mapping[str, Way]) -> Blocks:
    """One row for each setting that gets code."""
    columns: list[Column[Way]] = [
        left("setting", lambda way: _title(way, _hook(explained))),
        Column("tail", lambda way: _time(explained, way.tail_s)),
        Column("saves", lambda way: format_share(way.saved, 1)),
    ]
    return table(worth.values(), columns)


def _others(explained: ExplainedAdvice, worth: Mapping[str, Way]) -> Blocks:
    """The settings that get no code, with the reason."""
    reasons = [f"{_title(way, _hook(explained))} ({_reason(way)})" for way in explained.ways if way.name not in worth]
    return [f"Not typed below: {'; '.join(reasons)}."] if reasons else []


def _reason(way: Way) -> str:
    if abs(way.saved) < VISIBLE:
        return "saves nothing"
    if way.saved >= WORTH and not way.worth:
        return f"saves {format_share(way.saved, 1)} as assumed, loses elsewhere"
    return f"{'saves' if way.saved > 0 else 'loses'} {format_share(abs(way.saved), 1)}"


def _hook(explained: ExplainedAdvice) -> str:
    """gloo has no hook for bfloat16."""
    return "fp16" if explained.cpu else "bf16"


def _title(way: Way, hook: str) -> str:
    return f"the {hook} hook" if way.name == "hook" else f"no_sync, {way.number} batches a step"


# ── what to type ─────────────────────────────────────────────────────────────────────────────────
def ddp_code(explained: ExplainedAdvice, worth: Mapping[str, Way]) -> str:
    """Python that wraps `model`, unless torch's default is advised, and what saves more with it."""
    advised, imports, parts = explained.advice.advised, [], []
    if "hook" in worth:
        imports.append("from torch.distributed.algorithms.ddp_comm_hooks import default_hooks")
    if advised != "default":
        imports.append("from torch.nn.parallel import DistributedDataParallel")
        parts.append(_wrapping(explained))
    code = {"hook": _hook_code, "no_sync": _no_sync_code}
    more = [code[name](explained, way) for name, way in worth.items() if name in code]
    if more and advised == "default":
        parts.append("# model: a DistributedDataParallel")
    parts += more
    if advised != "default":
        parts.append(_assertion(explained))
    return "\n\n".join(filter(None, ["\n".join(imports), *parts]))


def _wrapping(explained: ExplainedAdvice) -> str:
    if explained.advice.advised == "cap":
        return f"model = DistributedDataParallel(model, bucket_cap_mb={_number(explained.cap_mib)})"
    caps = [f"*{count} * [{cap}]" if count > 1 else cap for cap, count in _runs(map(_number, explained.caps_mib))]
    return f"# torch 2.13 or newer\nmodel = DistributedDataParallel(model, bucket_cap_mb_list=[\n{_filled(caps)}\n])"


def _assertion(explained: ExplainedAdvice) -> str:
    sizes = explained.advice.chosen.buckets
    made, expected = 'made.count(",") + 1', str(len(sizes))
    if len(sizes) <= MOST_BUCKETS:
        made, expected = '[int(size) for size in made.split(",")]', f"[\n{_filled(map(str, sizes))}\n]"
    return (
        "# after the third step: are these the buckets that torch made?\n"
        'made = model._get_ddp_logging_data()["rebuilt_bucket_sizes"]\n'
        f"assert {made} == {expected}, made"
    )


def _hook_code(explained: ExplainedAdvice, way: Way) -> str:
    hook, needs = _hook(explained), "" if explained.cpu else "; NCCL only"
    return (
        f"# the {hook} hook rounds gradients before they are added{needs}\n"
        f"model.register_comm_hook(None, default_hooks.{hook}_compress_hook)"
    )


def _no_sync_code(explained: ExplainedAdvice, way: Way) -> str:
    return (
        f"# no_sync: {way.number} batches a step, each as large as before\n"
        "for batch in batches[:-1]:\n"
        "    with model.no_sync():\n"
        "        (loss_of(model, batch) / len(batches)).backward()\n"
        "(loss_of(model, batches[-1]) / len(batches)).backward()"
    )


def _runs(words: Iterable[str]) -> list[tuple[str, int]]:
    """Each word with the number of times it follows itself; the last once, as torch repeats the last cap."""
    runs = [(word, len(list(group))) for word, group in itertools.groupby(words)]
    return [*runs[:-1], (runs[-1][0], 1)]


def _number(value: float) -> str:
    return f"{value!r}".removesuffix(".0")


def _filled(words: Iterable[str]) -> str:
    """Elements of a list over as few lines as they need."""
    kept = ", ".join(word.replace(" ", NO_BREAK) for word in words)
    indent = 4 * " "
    return textwrap.fill(kept, COLUMNS, initial_indent=indent, subsequent_indent=indent).replace(NO_BREAK, " ")


# ── predicted and measured ───────────────────────────────────────────────────────────────────────
def verification(plans: Sequence[Verified], measured: ScenarioAnalysis) -> Blocks:
    """A heading, the table, when a prediction holds, which plan was best, and the refused plans."""
    best = "Too little could be measured to tell which is the best."
    known = sorted(((plan.exposed, plan) for plan in plans if plan.exposed), key=lambda pair: pair[0].value)
    if len(known) > 1:
        (least, first), (next_, second) = known[:2]
        predicted = first.predicted_s <= min(plan.predicted_s for _, plan in known)
        best = f"{first.name} exposed least, {'as' if predicted else 'against what was'} predicted."
        if least.high >= next_.low:
            best = f"{first.name} exposed least; that it is better than {second.name} is not resolved."
    return [
        Heading("Predicted and measured"),
        *table(plans, VERIFIED),
        f"Measured on {scenario_text(measured.scenario)}. A prediction holds if the tail, of the rank that comes last "
        f"in a step, is off by {format_seconds(OFF_S)} or {format_share(OFF_SHARE)} at most. "
        "Where a model computes, backward is taken to last longer by what copying and sending cost it here.",
        best,
        *items(f"{plan.name}: {plan.refused}" for plan in plans if plan.refused),
    ]


VERIFIED: list[Column[Verified]] = [
    left("plan", lambda plan: plan.name),
    Column("predicted tail", lambda plan: format_seconds(plan.predicted_s)),
    Column("measured tail", lambda plan: seconds(plan.tail_s)),
    Column("holds", lambda plan: HOLDS[plan.holds]),
    Column("exposed communication", lambda plan: seconds(plan.exposed.value) if plan.exposed else NOTHING),
    Column("its 95 % interval", lambda plan: bounds(plan.exposed)),
]
