"""The sizes of preset transformers, and from them the list of their gradients, without building a model.

In: a preset's name, or sizes such as d512-ff1376-l6-h8-v10000, each with changes such as -v50000-kv2-tied. Out: a
`Preset`, and its gradients. Does not import torch: `training.rank.models` builds the same parameters with it, in the
same order.

The sizes are those of the CS336 assignment, with the year in the name, because "xl" means 2.00 B parameters in 2025
and 3.41 B in 2026; nano to mini are for CPUs. All have RMSNorm before attention and before the feed-forward layer,
rotary positions, SwiGLU, no biases, and an untied head unless -tied says otherwise.
"""

import re
from dataclasses import dataclass, replace

from bench.model.steps import Gradient

VOCABULARY = 10_000


@dataclass(frozen=True, slots=True)
class Preset:
    """A decoder-only transformer. d_ff: width of the feed-forward layer.

    kv_heads: heads of keys and values, fewer than `heads` with grouped queries; 0 for as many. tied: the head has the
    embedding's weights.
    """

    d_model: int
    d_ff: int
    layers: int
    heads: int
    vocabulary: int = VOCABULARY
    kv_heads: int = 0
    tied: bool = False

    @property
    def kv_width(self) -> int:
        """Width of keys and of values."""
        return self.d_model // self.heads * (self.kv_heads or self.heads)


PRESETS = {
    "nano": Preset(64, 172, 2, 2, 512),
    "micro": Preset(128, 344, 4, 4, 2000),
    "tiny": Preset(256, 1024, 6, 4, 1000),
    "mini": Preset(384, 1024, 8, 6, 8000),
    "small-2025": Preset(768, 3072, 12, 12),
    "medium-2025": Preset(1024, 4096, 24, 16),
    "large-2025": Preset(1280, 5120, 36, 20),
    "xl-2025": Preset(1600, 6400, 48, 25),
    "2.7b-2025": Preset(2560, 10240, 32, 32),
    "small-2026": Preset(768, 3072, 12, 12),
    "medium-2026": Preset(1024, 4096, 24, 16),
    "large-2026": Preset(1280, 5120, 36, 20),
    "xl-2026": Preset(2560, 10240, 32, 32),
}
_SIZES = re.compile(r"d(\d+)-ff(\d+)-l(\d+)-h(\d+)-v(\d+)")
# A preset or sizes, followed by what is different: -v50000, -kv2, -tied, in this order.
_CHANGES = re.compile(
    r"(?P<base>d\d+-ff\d+-l\d+-h\d+-v\d+|.+?)(?:-v(?P<vocabulary>\d+))?(?:-kv(?P<kv_heads>\d+))?(?P<tied>-tied)?"
)
EXAMPLE = "d512-ff1376-l6-h8-v10000"


def find(name: str) -> Preset | None:
    """The preset of this name or of these sizes; None if it is neither. Raises ValueError for impossible sizes."""
    parts = _CHANGES.fullmatch(name)
    if not parts:
        return None
    base = PRESETS.get(parts["base"])
    if sizes := _SIZES.fullmatch(parts["base"]):
        width, hidden, layers, heads, vocabulary = map(int, sizes.groups())
        base = Preset(width, hidden, layers, heads, vocabulary)
    if not base:
        return None
    changes = {key: int(parts[key]) for key in ("vocabulary", "kv_heads") if parts[key]}
    preset = replace(base, tied=bool(parts["tied"]), **changes)
    if 0 in (preset.d_model, preset.d_ff, preset.layers, preset.heads, preset.vocabulary, *changes.values()):
        raise ValueError(f"{name}: every size must be 1 at least")
    # Rotary positions rotate pairs of elements of a head.
    if preset.d_model % (2 * preset.heads):
        raise ValueError(
            f"{name}: a width of {preset.d_model} is not divided into {preset.heads} heads of an even width"
        )
    if preset.kv_heads and preset.heads % preset.kv_heads:
        raise ValueError(f"{name}: {preset.heads} heads do not share {preset.kv_heads} heads of keys and values evenly")
    return preset


def name_of(preset: Preset) -> str:
    """The name that consists of its sizes, as `find` reads it."""
    sizes = f"d{preset.d_model}-ff{preset.d_ff}-l{preset.layers}-h{preset.heads}-v{preset.vocabulary}"
    return sizes + (f"-kv{preset.kv_heads}" if preset.kv_heads else "") + ("-tied" if preset.tied else "")


def gradients(preset: Preset, itemsize: int = 4) -> tuple[Gradient, ...]:
    """Its gradients in the order in which the module registers its parameters; itemsize: bytes of an element."""
    width, hidden = preset.d_model, preset.d_ff
    layer = {
        "norm1.weight": width, "attention.q.weight": width * width, "attention.k.weight": width * preset.kv_width,
        "attention.v.weight": width * preset.kv_width, "attention.out.weight": width * width, "norm2.weight": width,
        "feed_forward.gate.weight": width * hidden, "feed_forward.up.weight": width * hidden,
        "feed_forward.down.weight": width * hidden,
    }  # fmt: skip
    named = {"embedding.weight": preset.vocabulary * width}
    for number in range(preset.layers):
        named |= {f"layers.{number}.{name}": elements for name, elements in layer.items()}
    named |= {"norm.weight": width} | ({} if preset.tied else {"head.weight": preset.vocabulary * width})
    return tuple(Gradient(name, elements, elements * itemsize) for name, elements in named.items())


def parameters(preset: Preset) -> int:
    """The number of its parameters."""
    return sum(gradient.elements for gradient in gradients(preset))
