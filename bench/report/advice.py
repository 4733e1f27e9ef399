"""Write the bucket advice as Markdown, with code to paste, and the predicted beside the measured times of its plans.

In: an `ExplainedAdvice`; `Verified` plans. Out: text. Computes and judges nothing.

Sources of the code: torch's documentation of DistributedDataParallel and fully_shard; Accelerate's
DistributedDataParallelKwargs and transformers' TrainingArguments (whole MiB); DeepSpeed's configuration, whose
reduce_bucket_size counts elements; Megatron-LM's --ddp-bucket-size, which counts elements as well.
"""

import math
import re
from collections.abc import Sequence

from bench.model.conclusions import OFF_S, OFF_SHARE, WORTH, ExplainedAdvice, ScenarioAnalysis, Verified
from bench.model.units import format_rounded_bytes, format_seconds
from bench.report import markdown
from bench.report.labels import NOTHING
from bench.report.training import scenario_text

# Numbers in one line of code, so that it fits into 80 columns.
A_LINE = 6
BLOCKS = re.compile(r"(.*?\b\d+)\.")
HOLDS = {True: "yes", False: "NO", None: "not measured"}
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


def document(explained: ExplainedAdvice) -> str:
    """The whole text."""
    advice, backward, bytes_ = explained.advice, format_seconds(explained.backward_s), format_seconds(explained.bytes_s)
    default, chosen = format_seconds(advice.default.exposed_s), format_seconds(advice.chosen.exposed_s)
    if advice.advised == "default":
        saved = f"no bucket plan saves more than {WORTH:.0%} of backward"
        advised = f"Leave torch's default: {saved}; {default} stay exposed."
    else:
        what = f"Set a cap of {explained.cap_mib:g} MiB" if advice.advised == "cap" else "Set the plan below"
        advised = f"{what}: {chosen} stay exposed, where torch's default leaves {default}."
    bound_by = f"Not communication-bound: the bytes alone take {bytes_} of the {backward} of backward."
    if explained.bytes_s > explained.backward_s:
        bound_by = (
            f"Communication-bound: the bytes alone take {bytes_} and backward {backward}, so that no bucket plan can "
            "hide them all; send fewer bytes."
        )
    latency, rate, length = advice.box
    size, number = format_rounded_bytes(explained.total), sum(len(bucket.members) for bucket in explained.buckets)
    ways = [["what is advised: " + advice.advised, chosen, ""]]
    ways += [[way.name, format_seconds(way.exposed_s), way.note] for way in explained.others]
    parts = [
        f"# Buckets for {explained.model}",
        f"{number} gradients, {size} in all; the last gradient is ready after {backward}; {explained.link}.",
        f"**{advised}** {bound_by}",
        "## What stays exposed after backward",
        _plans(explained),
        "Regret: how much more than the best plan there a plan leaves exposed; the worst within "
        f"±{latency:.0%} of the latency, ±{rate:.0%} of the rate and ±{length:.0%} of backward.",
        "## What brings more",
        markdown.table(ways, ["way", "exposed a step", "what it changes"], "lrl"),
        "Each has the buckets that are best for it. Forward is taken to last half as long as backward.",
        "## What to type",
        what_to_type(explained),
        "## The buckets",
        _buckets(explained),
        "## To know",
        markdown.lines([LIMITS[explained.cpu], REALISED, OLDER, UNTRIED, *explained.notes]),
    ]
    return "\n\n".join(parts)


def _plans(explained: ExplainedAdvice) -> str:
    """One row for each plan; last the bound."""
    rows = [
        [
            name,
            str(len(prediction.buckets)),
            format_rounded_bytes(max(prediction.buckets)),
            format_seconds(prediction.exposed_s),
            format_seconds(prediction.worst_regret_s),
            ", ".join(
                f"{axis} {factor - 1:+.0%}"
                for axis, factor in zip(("latency", "rate", "backward"), prediction.worst_at, strict=True)
                if abs(factor - 1) > 1e-9
            )
            or "as assumed",
        ]
        for name, prediction in explained.predictions
    ]
    rows.append(["lower bound of all plans", "", "", format_seconds(explained.advice.bound_s), "", ""])
    headers = ["plan", "buckets", "largest", "exposed", "worst regret", "where link and backward are"]
    return markdown.table(rows, headers, "lrrrrl")


def _buckets(explained: ExplainedAdvice) -> str:
    """One row for each bucket, in the order in which they are sent; of a long plan only the first and the last ones."""
    rows, names = [], explained.names
    for number, bucket in enumerate(explained.buckets, start=1):
        members = bucket.members
        span = names[members[0]] + (f" … {names[members[-1]]}" if len(members) > 1 else "")
        instants = [format_seconds(instant) for instant in (bucket.ready_s, bucket.start_s, bucket.done_s)]
        rows.append([str(number), format_rounded_bytes(bucket.nbytes), str(len(members)), span, *instants])
    if len(rows) > MOST_BUCKETS:
        half = MOST_BUCKETS // 2
        rows[half:-half] = [[f"{len(rows) - MOST_BUCKETS} more", *[""] * 6]]
    headers = ["bucket", "size", "gradients", "from … to", "ready at", "starts at", "through at"]
    return markdown.table(rows, headers, "rrrlrrr")


# ── what to type ─────────────────────────────────────────────────────────────────────────────────
def what_to_type(explained: ExplainedAdvice) -> str:
    """A section for each framework. Caps are written by repr, as every digit may count."""
    elements = math.ceil(_size(explained) / explained.itemsize)
    deepspeed = (
        '{"zero_optimization": {"stage": 1, "overlap_comm": true,\n'
        f'  "reduce_bucket_size": {elements}, "allgather_bucket_size": {elements}}}}}'
    )
    parts = [
        ("torch's DistributedDataParallel", f"```python\n{ddp_code(explained)}\n```"),
        ("torch's FSDP2", _fsdp2(explained)),
        ("Accelerate and transformers", _accelerate(explained)),
        ("DeepSpeed", f"```json\n{deepspeed}\n```"),
        ("Megatron-LM", f"```sh\n--overlap-grad-reduce --ddp-bucket-size {elements}\n```"),
    ]
    return "\n\n".join(f"**{name}**\n\n{text}" for name, text in parts)


def ddp_code(explained: ExplainedAdvice) -> str:
    """Python that wraps `model` as advised; `assert_advised(model)`, three steps later, says whether torch does it."""
    advised, caps = explained.advice.advised, _listed([_number(cap) for cap in explained.caps_mib])
    argument = {
        "default": "model",
        "cap": f"model, bucket_cap_mb={_number(explained.cap_mib)}",
        "plan": f"\n    model,\n    bucket_cap_mb_list={_indented(caps)},\n",
    }[advised]
    lines = ["from torch.nn.parallel import DistributedDataParallel", ""]
    if advised == "plan":
        lines.append(f"# torch 2.13 or newer; before, bucket_cap_mb={_number(explained.cap_mib)}, the best single cap")
    sizes = _listed([str(size) for size in explained.advice.chosen.buckets])
    lines += [
        f"model = DistributedDataParallel({argument})",
        "",
        "",
        "def assert_advised(model):",
        '    """After the third step: did torch make the buckets that were advised?"""',
        '    made = model._get_ddp_logging_data()["rebuilt_bucket_sizes"]',
        f"    advised = {_indented(sizes)}",
        '    assert [int(size) for size in made.split(",")] == advised, made',
    ]
    return "\n".join(lines)


def _fsdp2(explained: ExplainedAdvice) -> str:
    """Blocks are wrapped in groups of about the advised size."""
    blocks = list(dict.fromkeys(match[1] for name in explained.names if (match := BLOCKS.match(name))))
    if not blocks:
        size = format_rounded_bytes(_size(explained))
        return (
            f"Wrap parts of the model that hold about {size} of gradients each in `fully_shard`, then the whole model."
        )
    group = min(len(blocks), max(1, round(_size(explained) / (explained.total / len(blocks)))))
    stack = blocks[0].rpartition(".")[0]
    wrapped = f"for block in model.{stack}:\n    fully_shard(block)"
    if group > 1:
        wrapped = (
            f"blocks = list(model.{stack})\n"
            f"for i in range(0, len(blocks), {group}):\n"
            f"    fully_shard(blocks[i : i + {group}])"
        )
    return f"```python\nfrom torch.distributed.fsdp import fully_shard\n\n{wrapped}\nfully_shard(model)\n```"


def _accelerate(explained: ExplainedAdvice) -> str:
    if explained.advice.advised == "default":
        return "Leave `bucket_cap_mb` and `ddp_bucket_cap_mb` as they are."
    cap = max(1, round(explained.cap_mib))
    return (
        "Whole MiB only, and a single cap:\n\n"
        "```python\n"
        "from accelerate import Accelerator, DistributedDataParallelKwargs\n\n"
        f"buckets = DistributedDataParallelKwargs(bucket_cap_mb={cap})\n"
        "accelerator = Accelerator(kwargs_handlers=[buckets])\n"
        f"# with transformers' Trainer: TrainingArguments(..., ddp_bucket_cap_mb={cap})\n"
        "```"
    )


def _size(explained: ExplainedAdvice) -> int:
    """Bytes of the largest bucket with the advised cap; with torch's default, of its largest."""
    advice = explained.advice
    return max((advice.default if advice.advised == "default" else advice.cap).buckets)


def _number(value: float) -> str:
    return f"{value!r}".removesuffix(".0")


def _listed(words: Sequence[str]) -> str:
    lines = [", ".join(words[i : i + A_LINE]) for i in range(0, len(words), A_LINE)]
    return f"[{lines[0]}]" if len(lines) == 1 else "[\n    " + ",\n    ".join(lines) + ",\n]"


def _indented(code: str) -> str:
    return code.replace("\n", "\n    ")


# ── predicted and measured ───────────────────────────────────────────────────────────────────────
def verification(plans: Sequence[Verified], measured: ScenarioAnalysis) -> str:
    """A heading, the table, when a prediction holds, which plan was best, and the refused plans."""
    rows = []
    for plan in plans:
        cells = [format_seconds(plan.predicted_s), NOTHING, HOLDS[plan.holds], NOTHING, NOTHING]
        if plan.tail_s is not None and plan.exposed is not None:
            interval = f"[{format_seconds(plan.exposed.low)} – {format_seconds(plan.exposed.high)}]"
            cells[1:] = [format_seconds(plan.tail_s), cells[2], format_seconds(plan.exposed.value), interval]
        rows.append([plan.name, *cells])
    best = "Too little could be measured to tell which is the best."
    known = sorted(((plan.exposed, plan) for plan in plans if plan.exposed), key=lambda pair: pair[0].value)
    if len(known) > 1:
        (least, first), (next_, second) = known[:2]
        predicted = first.predicted_s <= min(plan.predicted_s for _, plan in known)
        best = f"{first.name} exposed least, {'as' if predicted else 'against what was'} predicted."
        if least.high >= next_.low:
            best = f"{first.name} exposed least; that it is better than {second.name} is not resolved."
    headers = ["plan", "predicted", "tail", "holds", "exposed in all", "its 95 % interval"]
    parts = [
        "## Predicted and measured",
        markdown.table(rows, headers, "lrrrrr"),
        f"Measured on {scenario_text(measured.scenario)}. A prediction holds if the tail, of the rank that comes last "
        f"in a step, is off by {format_seconds(OFF_S)} or {OFF_SHARE:.0%} at most. "
        "Where a model computes, backward is taken to last longer by what copying and sending cost it here.",
        best,
        markdown.lines(f"{plan.name}: {plan.refused}" for plan in plans if plan.refused),
    ]
    return "\n\n".join(filter(None, parts))
