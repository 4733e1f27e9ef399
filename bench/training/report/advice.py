"""The advisor's answer as Markdown: the plan, what others would leave exposed, how sure that is, and code to paste.

In: profile, link and `Advice`. Out: text. Plans nothing itself; what it looks up besides, it asks of the planner.
"""

from collections.abc import Sequence

from tabulate import tabulate

from bench.training import planner
from bench.training.conclusions import Advice
from bench.training.link_model import LinkModel
from bench.training.planner import BucketPlan
from bench.training.ready_times import ReadyTimes
from bench.units import format_rounded_bytes, format_seconds

# A longer table of buckets is not read; the code has all of them.
MOST_BUCKETS = 24
# Caps of a line of code, so that it stays below 100 characters.
CAPS_A_LINE = 8

LIMITS = {
    True: "Here communicating costs CPU time, and computing slows down meanwhile: on CPUs the times above are lower "
    "bounds of what a step loses.",
    False: "That computing slows down while the GPU communicates is not in these times.",
    None: "Computing is held not to slow down while communicating. On CPUs (gloo, MPI) it does: there the times above "
    "are lower bounds of what a step loses.",
}
REALISED = (
    "torch follows a plan from the second step on, when it has rebuilt its buckets in the order in which gradients "
    "became ready; with `find_unused_parameters=True` it does so only if `static_graph=True`. A bucket closes once it "
    "has reached its cap. Caps count in MiB."
)
# pytorch pull request 121640, "make first bucket size equal to bucket_cap_mb if it was set".
OLDER = "Versions of torch from before the middle of 2024 keep a first bucket of 1 MiB whatever `bucket_cap_mb` says."


def document(ready_times: ReadyTimes, link: LinkModel, advice: Advice, model: str, names: Sequence[str]) -> str:
    """All of it. names: of the gradients, in the order in which they are registered."""
    # Caps of exactly its buckets' sizes make a plan again.
    plan = planner.realised(ready_times, advice.buckets)
    size, backward = format_rounded_bytes(ready_times.total), format_seconds(ready_times.ready_s[-1])
    parts = [
        f"# Buckets for {model}",
        f"{len(ready_times.nbytes)} gradients, {size} in all, the last of them ready after {backward}; {link.words}.",
        "## What stays exposed after backward",
        _plans(ready_times, link, advice, plan),
        "## The best plan",
        _buckets(ready_times, link, plan, names),
        "## If the link is not as assumed",
        _sensitivity(ready_times, link, plan),
        "## To paste",
        _code(ready_times, advice, plan),
        "## To know",
        "\n".join(f"- {note}" for note in _notes(ready_times, link, plan)),
    ]
    return "\n\n".join(parts)


def _plans(ready_times: ReadyTimes, link: LinkModel, advice: Advice, plan: BucketPlan) -> str:
    """The best plan beside those that people use."""
    textbook, everything = planner.textbook_cap(ready_times, link.cost), len(ready_times.nbytes)
    best_cap = planner.cap_mib(ready_times, advice.best_cap)
    named = {
        "best plan": plan,
        f"best uniform cap, {best_cap:g} MiB": planner.uniform(ready_times, advice.best_cap),
        f"textbook cap √(s·w·o), {format_rounded_bytes(textbook)}": planner.uniform(ready_times, textbook),
        "torch's default, 1 MiB then 25 MiB": planner.torch_default(ready_times),
        "bucket_cap_mb=25": planner.explicit_25(ready_times),
        "all in one": (everything,),
        "one call a gradient": tuple(range(1, everything + 1)),
    }
    rows = [
        [
            name,
            str(len(ends)),
            format_rounded_bytes(max(planner.bucket_bytes(ready_times, ends))),
            format_seconds(planner.exposed(ready_times, ends, link.cost)),
        ]
        for name, ends in named.items()
    ]
    rows.append(["no plan leaves less than", "", "", format_seconds(advice.bound_s)])
    return _table(rows, ["plan", "buckets", "largest", "exposed"])


def _buckets(ready_times: ReadyTimes, link: LinkModel, plan: BucketPlan, names: Sequence[str]) -> str:
    """One row a bucket, in the order in which they are sent; of a long plan the first and the last."""
    sizes, held = planner.bucket_bytes(ready_times, plan), planner.members(ready_times, plan)
    rows = []
    for number, (start, through) in enumerate(planner.schedule(ready_times, plan, link.cost)):
        inside = held[number]
        span = names[inside[0]] + (f" … {names[inside[-1]]}" if len(inside) > 1 else "")
        ready = ready_times.ready_s[plan[number] - 1]
        instants = [format_seconds(instant) for instant in (ready, start, through)]
        rows.append([str(number + 1), format_rounded_bytes(sizes[number]), str(len(inside)), span, *instants])
    if len(rows) > MOST_BUCKETS:
        half = MOST_BUCKETS // 2
        gap = [f"{len(rows) - MOST_BUCKETS} more", *[""] * 6]
        rows = [*rows[:half], gap, *rows[-half:]]
    headers = ["bucket", "size", "gradients", "from … to", "ready at", "starts at", "through at"]
    return _table(rows, headers, ["right", "right", "right", "left", "right", "right", "right"])


def _sensitivity(ready_times: ReadyTimes, link: LinkModel, plan: BucketPlan) -> str:
    rows = [
        [_off(d.latency), _off(d.rate), format_seconds(d.exposed_s), format_seconds(d.optimal_s)]
        for d in planner.sensitivity(ready_times, plan, link.cost)
    ]
    return _table(rows, ["latency", "rate", "this plan leaves", "the best would leave"], ["right"] * 4)


def _off(factor: float) -> str:
    return "as assumed" if factor == 1 else f"{factor - 1:+.0%}"


def _code(ready_times: ReadyTimes, advice: Advice, plan: BucketPlan) -> str:
    """repr, as every digit may count."""
    caps = [f"{cap!r}".removesuffix(".0") for cap in planner.caps_mib(ready_times, plan)]
    lines = [", ".join(caps[i : i + CAPS_A_LINE]) for i in range(0, len(caps), CAPS_A_LINE)]
    listed = lines[0] if len(lines) == 1 else "\n    " + ",\n    ".join(lines) + ",\n"
    cap = f"{planner.cap_mib(ready_times, advice.best_cap)!r}".removesuffix(".0")
    return (
        "```python\n"
        "# torch 2.13 or newer: the best plan\n"
        f"DistributedDataParallel(model, bucket_cap_mb_list=[{listed}])\n"
        "# older: the best uniform cap\n"
        f"DistributedDataParallel(model, bucket_cap_mb={cap})\n"
        "```"
    )


def _notes(ready_times: ReadyTimes, link: LinkModel, plan: BucketPlan) -> list[str]:
    notes = [LIMITS[link.cpu], REALISED, OLDER, *link.notes]
    largest = max(planner.bucket_bytes(ready_times, plan))
    if link.largest is not None and ready_times.total > link.largest:
        reached = "and so has a bucket of the best plan" if largest > link.largest else "but no bucket of the best plan"
        notes.append(
            f"All gradients together have more bytes than the largest size measured, {reached}: beyond "
            f"{format_rounded_bytes(link.largest)} the curve goes on as a straight line."
        )
    return notes


def _table(rows: Sequence[Sequence[str]], headers: Sequence[str], align: Sequence[str] | None = None) -> str:
    sides = align or ["left", *["right"] * (len(headers) - 1)]
    return tabulate(rows, headers, tablefmt="pipe", disable_numparse=True, colalign=sides)
