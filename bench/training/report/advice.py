"""Write the bucket advice as Markdown: what to do, what each plan leaves exposed, what brings more, what to type.

In: an `ExplainedAdvice` and the link that it is for. Out: text. Computes nothing.
"""

from collections.abc import Sequence

from bench.model.units import format_rounded_bytes, format_seconds
from bench.report import markdown
from bench.training.advisor import WORTH
from bench.training.conclusions import Advice, ExplainedAdvice, PlanPrediction
from bench.training.link_model import LinkModel
from bench.training.report.to_type import what_to_type

# Most rows in the table of buckets: a longer one is not read, and the code to paste has all of them.
MOST_BUCKETS = 24

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
UNTRIED = (
    "What to type for Accelerate, transformers, DeepSpeed and Megatron-LM follows their documentation; it was not run."
)


def document(explained: ExplainedAdvice, link: LinkModel, model: str, names: Sequence[str]) -> str:
    """The whole text. names: of the gradients, in the order in which they are registered."""
    size, backward = format_rounded_bytes(explained.total), format_seconds(explained.backward_s)
    parts = [
        f"# Buckets for {model}",
        f"{explained.gradients} gradients, {size} in all; the last gradient is ready after {backward}; {link.words}.",
        f"**{_advised(explained)}** {_bound_by(explained)}",
        "## What stays exposed after backward",
        _plans(explained),
        _regret(explained.advice),
        "## What brings more",
        _others(explained),
        "## What to type",
        what_to_type(explained, names),
        "## The buckets",
        _buckets(explained, names),
        "## To know",
        "\n".join(f"- {note}" for note in _notes(explained, link)),
    ]
    return "\n\n".join(parts)


def _advised(explained: ExplainedAdvice) -> str:
    advice = explained.advice
    default, chosen = format_seconds(advice.default.exposed_s), format_seconds(advice.chosen.exposed_s)
    if advice.advised == "default":
        return f"Leave torch's default: no bucket plan saves more than {WORTH:.0%} of backward; {default} stay exposed."
    what = f"Set a cap of {explained.cap_mib:g} MiB" if advice.advised == "cap" else "Set the plan below"
    return f"{what}: {chosen} stay exposed, where torch's default leaves {default}."


def _bound_by(explained: ExplainedAdvice) -> str:
    """Whether the bytes alone take longer than backward."""
    bytes_, backward = format_seconds(explained.bytes_s), format_seconds(explained.backward_s)
    if explained.bytes_s > explained.backward_s:
        return (
            f"Communication-bound: the bytes alone take {bytes_} and backward {backward}, so that no bucket plan can "
            "hide them all; send fewer bytes."
        )
    return f"Not communication-bound: the bytes alone take {bytes_} of the {backward} of backward."


def _plans(explained: ExplainedAdvice) -> str:
    """One row for each plan; last the bound."""
    rows = [
        [
            name,
            str(len(one.buckets)),
            format_rounded_bytes(max(one.buckets)),
            format_seconds(one.exposed_s),
            format_seconds(one.worst_regret_s),
            _where(one),
        ]
        for name, one in explained.predictions
    ]
    rows.append(["lower bound of all plans", "", "", format_seconds(explained.advice.bound_s), "", ""])
    headers = ["plan", "buckets", "largest", "exposed", "worst regret", "where link and backward are"]
    return markdown.table(rows, headers, ["left", "right", "right", "right", "right", "left"])


def _where(one: PlanPrediction) -> str:
    words = [
        f"{name} {factor - 1:+.0%}"
        for name, factor in zip(("latency", "rate", "backward"), one.worst_at, strict=True)
        if abs(factor - 1) > 1e-9
    ]
    return ", ".join(words) or "as assumed"


def _regret(advice: Advice) -> str:
    latency, rate, backward = advice.box
    return (
        f"Regret: how much more than the best plan there a plan leaves exposed; the worst within ±{latency:.0%} of the "
        f"latency, ±{rate:.0%} of the rate and ±{backward:.0%} of backward."
    )


def _others(explained: ExplainedAdvice) -> str:
    rows = [[one.name, format_seconds(one.exposed_s), one.note] for one in explained.others]
    mine = [f"what is advised: {explained.advice.advised}", format_seconds(explained.advice.chosen.exposed_s), ""]
    table = markdown.table([mine, *rows], ["way", "exposed a step", "what it changes"], ["left", "right", "left"])
    return f"{table}\n\nEach has the buckets that are best for it. Forward is taken to last half as long as backward."


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
    return markdown.table(rows, headers, ["right", "right", "right", "left", "right", "right", "right"])


def _notes(explained: ExplainedAdvice, link: LinkModel) -> list[str]:
    notes = [LIMITS[link.cpu], REALISED, OLDER, UNTRIED, *link.notes]
    largest = max(one.nbytes for one in explained.buckets)
    if link.largest is not None and explained.total > link.largest:
        reached = "and so has a bucket of the plan" if largest > link.largest else "but no bucket of the plan"
        notes.append(
            f"All gradients together have more bytes than the largest size measured, {reached}: beyond "
            f"{format_rounded_bytes(link.largest)} the curve goes on as a straight line."
        )
    return notes
