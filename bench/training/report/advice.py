"""Write the bucket advice as Markdown: the best plan, what other plans leave exposed, sensitivity, code to paste.

In: an `ExplainedAdvice` and the link that it is for. Out: text. Computes nothing.
"""

from collections.abc import Sequence

from tabulate import tabulate

from bench.training.conclusions import ExplainedAdvice
from bench.training.link_model import LinkModel
from bench.units import format_rounded_bytes, format_seconds

# Most rows in the table of buckets: a longer one is not read, and the code to paste has all of them.
MOST_BUCKETS = 24
# Caps in one line of code, so that it stays below 100 characters.
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


def document(explained: ExplainedAdvice, link: LinkModel, model: str, names: Sequence[str]) -> str:
    """The whole text. names: of the gradients, in the order in which they are registered."""
    size, backward = format_rounded_bytes(explained.total), format_seconds(explained.backward_s)
    parts = [
        f"# Buckets for {model}",
        f"{explained.gradients} gradients, {size} in all, the last of them ready after {backward}; {link.words}.",
        "## What stays exposed after backward",
        _plans(explained),
        "## The best plan",
        _buckets(explained, names),
        "## If the link is not as assumed",
        _sensitivity(explained),
        "## To paste",
        _code(explained),
        "## To know",
        "\n".join(f"- {note}" for note in _notes(explained, link)),
    ]
    return "\n\n".join(parts)


def _plans(explained: ExplainedAdvice) -> str:
    """One row for each plan: the best one and those in common use; last the bound."""
    rows = [
        [one.name, str(one.buckets), format_rounded_bytes(one.largest), format_seconds(one.exposed_s)]
        for one in explained.predictions
    ]
    rows.append(["lower bound of all plans", "", "", format_seconds(explained.advice.bound_s)])
    return _table(rows, ["plan", "buckets", "largest", "exposed"])


def _buckets(explained: ExplainedAdvice, names: Sequence[str]) -> str:
    """One row for each bucket, in the order in which they are sent; of a long plan only the first and the last ones."""
    rows = []
    for number, one in enumerate(explained.buckets, start=1):
        span = names[one.members[0]] + (f" … {names[one.members[-1]]}" if len(one.members) > 1 else "")
        instants = [format_seconds(instant) for instant in (one.ready_s, one.start_s, one.done_s)]
        rows.append([str(number), format_rounded_bytes(one.nbytes), str(len(one.members)), span, *instants])
    if len(rows) > MOST_BUCKETS:
        half = MOST_BUCKETS // 2
        gap = [f"{len(rows) - MOST_BUCKETS} more", *[""] * 6]
        rows = [*rows[:half], gap, *rows[-half:]]
    headers = ["bucket", "size", "gradients", "from … to", "ready at", "starts at", "through at"]
    return _table(rows, headers, ["right", "right", "right", "left", "right", "right", "right"])


def _sensitivity(explained: ExplainedAdvice) -> str:
    rows = [
        [_off(d.latency), _off(d.rate), format_seconds(d.exposed_s), format_seconds(d.optimal_s)]
        for d in explained.sensitivity
    ]
    return _table(rows, ["latency", "rate", "this plan leaves", "the best would leave"], ["right"] * 4)


def _off(factor: float) -> str:
    return "as assumed" if factor == 1 else f"{factor - 1:+.0%}"


def _code(explained: ExplainedAdvice) -> str:
    """Code to paste. Caps are written by repr, because every digit may count."""
    caps = [f"{cap!r}".removesuffix(".0") for cap in explained.caps_mib]
    lines = [", ".join(caps[i : i + CAPS_A_LINE]) for i in range(0, len(caps), CAPS_A_LINE)]
    listed = lines[0] if len(lines) == 1 else "\n    " + ",\n    ".join(lines) + ",\n"
    cap = f"{explained.cap_mib!r}".removesuffix(".0")
    return (
        "```python\n"
        "# torch 2.13 or newer: the best plan\n"
        f"DistributedDataParallel(model, bucket_cap_mb_list=[{listed}])\n"
        "# older: the best uniform cap\n"
        f"DistributedDataParallel(model, bucket_cap_mb={cap})\n"
        "```"
    )


def _notes(explained: ExplainedAdvice, link: LinkModel) -> list[str]:
    notes = [LIMITS[link.cpu], REALISED, OLDER, *link.notes]
    largest = max(one.nbytes for one in explained.buckets)
    if link.largest is not None and explained.total > link.largest:
        reached = "and so has a bucket of the best plan" if largest > link.largest else "but no bucket of the best plan"
        notes.append(
            f"All gradients together have more bytes than the largest size measured, {reached}: beyond "
            f"{format_rounded_bytes(link.largest)} the curve goes on as a straight line."
        )
    return notes


def _table(rows: Sequence[Sequence[str]], headers: Sequence[str], align: Sequence[str] | None = None) -> str:
    sides = align or ["left", *["right"] * (len(headers) - 1)]
    return tabulate(rows, headers, tablefmt="pipe", disable_numparse=True, colalign=sides)
