"""Write the advice, with code to paste, and compare predicted with measured times of bucket plans.

In: an `ExplainedAdvice`; `Verified` plans. Out: blocks. Computes and judges nothing.

tests/test_advise.py runs the Python code on two ranks of gloo, except code that needs NCCL.
"""

from collections.abc import Callable, Sequence

from collbench.model.units import format_rounded_bytes, format_seconds, format_share
from collbench.packages.training.conclusions import OFF_S, OFF_SHARE, PlanPrediction, ScenarioAnalysis, Verified
from collbench.packages.training.planning.advisor import BATCHES, WORTH, ExplainedAdvice, Way
from collbench.packages.training.report.steps import scenario_text, value_text
from collbench.report.blocks import Blocks, Code, Column, Heading, items, left, section, table
from collbench.report.labels import NOTHING, interval_text, seconds_text

HOLDS = {True: "yes", False: "NO", None: "not measured"}
# Most buckets that code compares one by one.
MOST_COMPARED = 4
# Shorter times than this share of a step are not printed.
VISIBLE = 0.001

LIMITS = {
    True: "Here communicating takes CPU time from computing: the times above are lower bounds, and on few cores bucket "
    "sizes do not matter. Measure it with --verify.",
    False: "These times do not include that computing slows down while the GPU communicates.",
    None: "That computing slows down while communicating is not in these times; on CPUs they are lower bounds.",
}


def document(explained: ExplainedAdvice) -> Blocks:
    """Return the whole text of an advice."""
    backward, size = format_seconds(explained.backward_s), format_rounded_bytes(explained.ready_times.total)
    worth = [way for way in explained.ways if way.worth]
    reasons = [f"{_title(explained, way)} ({_reason(way)})" for way in explained.ways if not way.worth]
    columns: list[Column[Way]] = [
        left("setting", lambda way: _title(explained, way)),
        Column("tail", lambda way: _time(explained, way.tail_s)),
        Column("saves", lambda way: format_share(way.saved, 1)),
    ]
    savings = [*table(worth, columns), *([f"No code below: {'; '.join(reasons)}."] if reasons else [])]
    codes = ddp_codes(explained) if worth or explained.advice.advised else []
    to_type: Blocks = [Code(code, "python") for code in codes]
    link = explained.link
    ranks = "the ranks of the link" if link.ranks is None else f"{link.ranks} ranks"
    limitations = [LIMITS[link.cpu], f"This is valid for {ranks} only.", *explained.notes]
    return [
        Heading(f"Advice for {explained.model}", 1),
        f"{len(explained.ready_times.nbytes)} gradients, {size}; backward {backward}, forward assumed to last half as "
        f"long; {link.words}.",
        f"**{_answer(explained, worth)}** {_bound_by(explained)}",
        Heading("Buckets: the communication left after backward (the tail)"),
        *_plans(explained),
        "Slower and faster: a link whose latency and rate are worse or better by so much.",
        *section("What saves more, each alone", savings),
        *section("What to type", to_type),
        *section("To know", items(limitations)),
    ]


def _answer(explained: ExplainedAdvice, worth: Sequence[Way]) -> str:
    """Return the advice on buckets, and the other setting that saves most."""
    advice = explained.advice
    default, chosen = _time(explained, advice.default.tail_s), _time(explained, advice.chosen.tail_s)
    text = f"Set a cap of {explained.cap_mib:g} MiB: it leaves {chosen}, where torch's default leaves {default}."
    if advice.loses_s:
        saves = (advice.default.tail_s - advice.cap.tail_s) / explained.step_s
        text = (
            f"Leave torch's default, which leaves {default}, unless you know the link well: a cap of "
            f"{explained.cap_mib:g} MiB saves {format_share(saves, 1)} of a step on the link as assumed, but loses "
            f"up to {format_seconds(advice.loses_s)} if the link is {format_share(advice.off)} slower or faster."
        )
    elif not advice.advised:
        text = (
            f"Leave torch's default, which leaves {default}: the best cap, {explained.cap_mib:g} MiB, saves "
            f"less than {format_share(WORTH)} of a step."
        )
    if not worth:
        return text
    title, saved = _title(explained, worth[0]), format_share(worth[0].saved, 1)
    return f"{text} Of the other settings, {title} saves most: {saved} of a step."


def _bound_by(explained: ExplainedAdvice) -> str:
    backward = format_seconds(explained.backward_s)
    if explained.bytes_s > explained.backward_s:
        return (
            f"Communication-bound: the bytes alone take {format_seconds(explained.bytes_s)} and backward {backward}, "
            "so no buckets hide them all."
        )
    bytes_ = _time(explained, explained.bytes_s)
    return f"Not communication-bound: the bytes alone take {bytes_} of the {backward} of backward."


def _time(explained: ExplainedAdvice, seconds: float) -> str:
    """Format seconds; as `< …` if they are too few to be seen in a step."""
    least = VISIBLE * explained.step_s
    return format_seconds(seconds) if seconds >= least else f"< {format_seconds(least)}"


def _plans(explained: ExplainedAdvice) -> Blocks:
    """Return the table of torch's default, the best cap, and the lower bound of all plans, which has no buckets."""
    advice, off = explained.advice, format_share(explained.advice.off)

    def saves(prediction: PlanPrediction) -> str:
        share = (advice.default.tail_s - prediction.tail_s) / explained.step_s
        return format_share(share, 1) if abs(share) >= VISIBLE else NOTHING

    def unless_bound(cell: Callable[[PlanPrediction], str]) -> Callable[[tuple[str, PlanPrediction | None]], str]:
        return lambda row: "" if row[1] is None else cell(row[1])

    rows = [
        ("torch's default", advice.default),
        (f"best cap, {explained.cap_mib:g} MiB", advice.cap),
        ("lower bound", None),
    ]
    columns: list[Column[tuple[str, PlanPrediction | None]]] = [
        left("plan", lambda row: row[0]),
        Column("buckets", unless_bound(lambda plan: str(len(plan.buckets)))),
        Column("largest", unless_bound(lambda plan: format_rounded_bytes(max(plan.buckets)))),
        Column("tail", lambda row: _time(explained, advice.bound_s if row[1] is None else row[1].tail_s)),
        Column("saves", unless_bound(saves)),
        Column(f"{off} slower", unless_bound(lambda plan: _time(explained, plan.slower_s))),
        Column(f"{off} faster", unless_bound(lambda plan: _time(explained, plan.faster_s))),
    ]
    return table(rows, columns)


# ── other settings ───────────────────────────────────────────────────────────────────────────────
def _reason(way: Way) -> str:
    if abs(way.saved) < VISIBLE:
        return "saves nothing"
    return f"{'saves' if way.saved > 0 else 'loses'} {format_share(abs(way.saved), 1)}"


def _hook(explained: ExplainedAdvice) -> str:
    """Return the compression hook: fp16 on CPUs, because gloo has no hook for bfloat16."""
    return "fp16" if explained.link.cpu else "bf16"


def _title(explained: ExplainedAdvice, way: Way) -> str:
    return f"the {_hook(explained)} hook" if way.name == "hook" else f"no_sync, {BATCHES} batches per step"


# ── code to paste ────────────────────────────────────────────────────────────────────────────────
NO_SYNC = f"""\
# no_sync: {BATCHES} batches per step, each as large as before
for batch in batches[:-1]:
    with model.no_sync():
        (loss_of(model, batch) / len(batches)).backward()
(loss_of(model, batches[-1]) / len(batches)).backward()"""


def ddp_codes(explained: ExplainedAdvice) -> list[str]:
    """Return code for each setting that saves more; if a cap is advised, also code that wraps `model`, and a check."""
    hook, sizes = _hook(explained), explained.advice.chosen.buckets
    restriction = "" if explained.link.cpu else "; NCCL only"
    code_by_way = {
        "hook": "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks\n\n"
        f"# the {hook} hook rounds gradients before they are added{restriction}\n"
        f"model.register_comm_hook(None, default_hooks.{hook}_compress_hook)",
        "no_sync": NO_SYNC,
    }
    codes = [f"# model: a DistributedDataParallel\n{code_by_way[way.name]}" for way in explained.ways if way.worth]
    if not explained.advice.advised:
        return codes
    imports = "from torch.nn.parallel import DistributedDataParallel"
    cap = f"{explained.cap_mib!r}".removesuffix(".0")
    made, planned = "len(made)", str(len(sizes))
    if len(sizes) <= MOST_COMPARED:
        made, planned = "[int(size) for size in made]", str([*sizes])
    check = (
        "# after the third step: are these the buckets that torch made?\n"
        f"planned = {planned}\n"
        'made = model._get_ddp_logging_data()["rebuilt_bucket_sizes"].split(",")\n'
        f"if {made} != planned:  # gradients of a layer may be ready in any order\n"
        '    print("torch made buckets of", made, "bytes; planned were", planned)'
    )
    return [f"{imports}\n\nmodel = DistributedDataParallel(model, bucket_cap_mb={cap})", *codes, check]


# ── predicted and measured ───────────────────────────────────────────────────────────────────────
def verification(plans: Sequence[Verified], measured: ScenarioAnalysis) -> Blocks:
    """Return a heading, the table, the criterion for predictions, the best plan, and the refused plans."""
    best = "Too little could be measured to know which is the best."
    timed = sorted(((plan.exposed, plan) for plan in plans if plan.exposed), key=lambda pair: pair[0].value)
    if len(timed) > 1:
        (first_interval, first), (second_interval, second) = timed[:2]
        predicted = first.predicted_s <= min(plan.predicted_s for _, plan in timed)
        best = f"{first.name} exposed least, {'as' if predicted else 'against what was'} predicted."
        if first_interval.high >= second_interval.low:
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
    Column("measured tail", lambda plan: seconds_text(plan.tail_s)),
    Column("holds", lambda plan: HOLDS[plan.holds]),
    Column("exposed communication", lambda plan: value_text(plan.exposed)),
    Column("its 95 % interval", lambda plan: interval_text(plan.exposed, seconds_text)),
]
