"""Write the advice, with code to paste, and compare predicted with measured tails of bucket plans.

In: an `ExplainedAdvice`; `Verified` plans. Out: blocks.

tests/test_advise.py runs the Python code on two ranks of gloo, except code that needs NCCL.
"""

from collections.abc import Sequence

from collbench.model.units import format_rounded_bytes, format_seconds, format_share
from collbench.packages.training.conclusions import OFF_S, OFF_SHARE, PlanPrediction, Verified
from collbench.packages.training.planning.advisor import BATCHES, WORTH, ExplainedAdvice, Way
from collbench.packages.training.planning.buckets import cap_mib
from collbench.report.blocks import Blocks, Code, Column, Heading, items, keyed, left, section, table
from collbench.report.labels import NOTHING, seconds_text

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
    advice, link, ready_times = explained.advice, explained.link, explained.ready_times
    backward, cap = format_seconds(ready_times.ready_s[-1]), f"{cap_mib(ready_times, advice.cap_bytes):g} MiB"
    settings = _settings(link.cpu)
    worth = [way for way in explained.ways if way.saved >= WORTH]
    reasons = [f"{settings[way.name][0]} ({_reason(way)})" for way in explained.ways if way not in worth]
    columns: list[Column[Way]] = [
        left("setting", lambda way: settings[way.name][0]),
        Column("tail", lambda way: _time(explained, way.tail_s)),
        Column("saves", lambda way: format_share(way.saved, 1)),
    ]
    most = ""
    if worth:
        saved = format_share(worth[0].saved, 1)
        most = f" Of the other settings, {settings[worth[0].name][0]} saves most: {saved} of a step."
    ranks = "the ranks of the link" if link.ranks is None else f"{link.ranks} ranks"
    return [
        Heading(f"Advice for {explained.model}", 1),
        f"{len(ready_times.nbytes)} gradients, {format_rounded_bytes(ready_times.total)}; backward {backward}, forward "
        f"assumed to last half as long; {link.words}.",
        f"**{_answer(explained, cap)}{most}** {_bound_by(explained, backward)}",
        Heading("Buckets: the communication left after backward (the tail)"),
        *_plans(explained, cap),
        "Slower and faster: a link whose latency and rate are worse or better by so much.",
        *section(
            "What saves more, each alone",
            [*table(worth, columns), *([f"No code below: {'; '.join(reasons)}."] if reasons else [])],
        ),
        *section("What to type", [Code(code, "python") for code in ddp_codes(explained)]),
        *section("To know", items([LIMITS[link.cpu], f"This is valid for {ranks} only.", *explained.notes])),
    ]


def _answer(explained: ExplainedAdvice, cap: str) -> str:
    """Return the advice on buckets."""
    advice = explained.advice
    default, saved_s = _time(explained, advice.default.tail_s), advice.default.tail_s - advice.cap.tail_s
    if advice.advised:
        chosen = _time(explained, advice.cap.tail_s)
        return f"Set a cap of {cap}: it leaves {chosen}, where torch's default leaves {default}."
    if advice.loses_s:
        return (
            f"Leave torch's default, which leaves {default}, unless you know the link well: a cap of {cap} saves "
            f"{format_share(saved_s / explained.step_s, 1)} of a step on the link as assumed, but loses up to "
            f"{format_seconds(advice.loses_s)} if the link is {format_share(advice.off)} slower or faster."
        )
    return (
        f"Leave torch's default, which leaves {default}: the best cap, {cap}, saves less than {format_share(WORTH)} of "
        "a step."
    )


def _bound_by(explained: ExplainedAdvice, backward: str) -> str:
    """Compare the time of all bytes, at the rate of the link, with backward."""
    bytes_s = explained.ready_times.total * explained.link.cost.slope_s
    if bytes_s > explained.ready_times.ready_s[-1]:
        return (
            f"Communication-bound: the bytes alone take {format_seconds(bytes_s)} and backward {backward}, "
            "so no buckets hide them all."
        )
    return f"Not communication-bound: the bytes alone take {_time(explained, bytes_s)} of the {backward} of backward."


def _time(explained: ExplainedAdvice, seconds: float) -> str:
    """Format seconds; as `< …` if they are too few to be seen in a step."""
    least = VISIBLE * explained.step_s
    return format_seconds(seconds) if seconds >= least else f"< {format_seconds(least)}"


def _plans(explained: ExplainedAdvice, cap: str) -> Blocks:
    """Return the table of torch's default, the best cap, and the lower bound of all plans, which has no buckets."""
    advice, off = explained.advice, format_share(explained.advice.off)

    def cells(name: str, plan: PlanPrediction) -> list[str]:
        share = (advice.default.tail_s - plan.tail_s) / explained.step_s
        saves = format_share(share, 1) if abs(share) >= VISIBLE else NOTHING
        tail, *others = (_time(explained, tail_s) for tail_s in plan.tails_s)
        return [name, str(len(plan.buckets)), format_rounded_bytes(max(plan.buckets)), tail, saves, *others]

    rows = [
        cells("torch's default", advice.default),
        cells(f"best cap, {cap}", advice.cap),
        ["lower bound", "", "", _time(explained, advice.bound_s), "", "", ""],
    ]
    headers = ("buckets", "largest", "tail", "saves", f"{off} slower", f"{off} faster")
    numbered = ((header, number) for number, header in enumerate(headers, 1))
    return table(rows, [left("plan", lambda row: row[0]), *keyed(numbered, lambda row, number: row[number])])


def _reason(way: Way) -> str:
    if abs(way.saved) < VISIBLE:
        return "saves nothing"
    return f"{'saves' if way.saved > 0 else 'loses'} {format_share(abs(way.saved), 1)}"


# ── code to paste ────────────────────────────────────────────────────────────────────────────────
NO_SYNC = f"""\
# no_sync: {BATCHES} batches per step, each as large as before
for batch in batches[:-1]:
    with model.no_sync():
        (loss_of(model, batch) / len(batches)).backward()
(loss_of(model, batches[-1]) / len(batches)).backward()"""


def _settings(cpu: bool | None) -> dict[str, tuple[str, str]]:
    """Return name of a `Way` → its title and code. cpu: as in `LinkModel`; gloo has no hook for bfloat16."""
    hook, restriction = ("fp16", "") if cpu else ("bf16", "; NCCL only")
    code = (
        "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks\n\n"
        f"# the {hook} hook rounds gradients before they are added{restriction}\n"
        f"model.register_comm_hook(None, default_hooks.{hook}_compress_hook)"
    )
    return {"hook": (f"the {hook} hook", code), "no_sync": (f"no_sync, {BATCHES} batches per step", NO_SYNC)}


def ddp_codes(explained: ExplainedAdvice) -> list[str]:
    """Return code for each setting that saves more; if a cap is advised, also code that wraps `model`, and a check."""
    settings, sizes = _settings(explained.link.cpu), explained.advice.chosen.buckets
    worth = (settings[way.name][1] for way in explained.ways if way.saved >= WORTH)
    codes = [f"# model: a DistributedDataParallel\n{code}" for code in worth]
    if not explained.advice.advised:
        return codes
    cap = f"{cap_mib(explained.ready_times, explained.advice.cap_bytes)!r}".removesuffix(".0")
    made, planned = "len(made)", str(len(sizes))
    if len(sizes) <= MOST_COMPARED:
        made, planned = "[int(size) for size in made]", str([*sizes])
    wrapped = (
        "from torch.nn.parallel import DistributedDataParallel\n\n"
        f"model = DistributedDataParallel(model, bucket_cap_mb={cap})"
    )
    check = (
        "# after the third step: are these the buckets that torch made?\n"
        f"planned = {planned}\n"
        'made = model._get_ddp_logging_data()["rebuilt_bucket_sizes"].split(",")\n'
        f"if {made} != planned:  # gradients of a layer may be ready in any order\n"
        '    print("torch made buckets of", made, "bytes; planned were", planned)'
    )
    return [wrapped, *codes, check]


# ── predicted and measured ───────────────────────────────────────────────────────────────────────
def verification(plans: Sequence[Verified]) -> Blocks:
    """Return the predicted and the measured tail of each plan, and when a prediction holds."""
    return [
        Heading("Predicted and measured"),
        *table(plans, VERIFIED),
        "A prediction holds if the tail, of the rank that comes last in a step, is off by "
        f"{format_seconds(OFF_S)} or {format_share(OFF_SHARE)} at most. "
        "Where a model computes, backward is taken to last longer by what copying and sending cost it here.",
    ]


VERIFIED: list[Column[Verified]] = [
    left("plan", lambda plan: plan.name),
    Column("predicted tail", lambda plan: format_seconds(plan.predicted_s)),
    Column("measured tail", lambda plan: seconds_text(plan.tail_s)),
    Column("holds", lambda plan: HOLDS[plan.holds]),
]
