"""Write what to type so that a training framework follows the advice: torch's DDP and FSDP2, and what builds on them.

In: an `ExplainedAdvice`. Out: Markdown with code. Computes nothing. Caps are written by repr, as every digit may count.

Sources: torch's documentation of DistributedDataParallel and fully_shard; Accelerate's DistributedDataParallelKwargs
and transformers' TrainingArguments (whole MiB); DeepSpeed's configuration, whose reduce_bucket_size counts elements;
Megatron-LM's --ddp-bucket-size, which counts elements as well.
"""

import math
import re
from collections.abc import Sequence

from bench.model.units import format_rounded_bytes
from bench.training.conclusions import ExplainedAdvice

MIB = 2**20
# Numbers in one line of code, so that it fits into 80 columns.
A_LINE = 6
BLOCKS = re.compile(r"(.*?\b\d+)\.")


def what_to_type(explained: ExplainedAdvice, names: Sequence[str]) -> str:
    """A section for each framework. names: of the gradients, in the order in which they are registered."""
    parts = [
        ("torch's DistributedDataParallel", _ddp(explained)),
        ("torch's FSDP2", _fsdp2(explained, names)),
        ("Accelerate and transformers", _accelerate(explained)),
        ("DeepSpeed", _deepspeed(explained)),
        ("Megatron-LM", _megatron(explained)),
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


def _ddp(explained: ExplainedAdvice) -> str:
    return f"```python\n{ddp_code(explained)}\n```"


def _fsdp2(explained: ExplainedAdvice, names: Sequence[str]) -> str:
    """Blocks are wrapped in groups of about the advised size."""
    counts: dict[str, int] = {}
    for name in names:
        if found := BLOCKS.match(name):
            counts[found[1]] = counts.get(found[1], 0) + 1
    if not counts:
        size = format_rounded_bytes(_size(explained))
        return (
            f"Wrap parts of the model that hold about {size} of gradients each in `fully_shard`, then the whole model."
        )
    group = min(len(counts), max(1, round(_size(explained) / (explained.total / len(counts)))))
    blocks = next(iter(counts)).rpartition(".")[0]
    wrapped = f"for block in model.{blocks}:\n    fully_shard(block)"
    if group > 1:
        wrapped = (
            f"blocks = list(model.{blocks})\n"
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


def _deepspeed(explained: ExplainedAdvice) -> str:
    elements = _elements(explained)
    return (
        "```json\n"
        '{"zero_optimization": {"stage": 1, "overlap_comm": true,\n'
        f'  "reduce_bucket_size": {elements}, "allgather_bucket_size": {elements}}}}}\n'
        "```"
    )


def _megatron(explained: ExplainedAdvice) -> str:
    return f"```sh\n--overlap-grad-reduce --ddp-bucket-size {_elements(explained)}\n```"


def _size(explained: ExplainedAdvice) -> int:
    """Bytes of the largest bucket with the advised cap; with torch's default, of its largest."""
    advice = explained.advice
    return max((advice.default if advice.advised == "default" else advice.cap).buckets)


def _elements(explained: ExplainedAdvice) -> int:
    return math.ceil(_size(explained) / explained.itemsize)


def _number(value: float) -> str:
    return f"{value!r}".removesuffix(".0")


def _listed(words: Sequence[str]) -> str:
    lines = [", ".join(words[i : i + A_LINE]) for i in range(0, len(words), A_LINE)]
    return f"[{lines[0]}]" if len(lines) == 1 else "[\n    " + ",\n    ".join(lines) + ",\n]"


def _indented(code: str) -> str:
    return code.replace("\n", "\n    ")
