"""Define the sizes of preset transformers, and list their gradients without building a model.

In: a preset's name, or sizes such as d512-ff1376-l6-h8-v10000. Out: a `Preset`, and its gradients. Does not import
torch: `training.rank.models` builds the same parameters with torch, in the same order.

The sizes come from the CS336 assignment; the year is in the name, because "xl" means 2.00 B parameters in 2025
and 3.41 B in 2026; nano to mini are for CPUs. All have RMSNorm before attention and before the feed-forward layer,
rotary positions, SwiGLU, no biases, and an untied head.
"""

import re
from dataclasses import dataclass

from collbench.packages.training.step_records import Gradient

VOCABULARY = 10_000


@dataclass(frozen=True, slots=True)
class Preset:
    """A decoder-only transformer."""

    d_model: int
    # Width of the feed-forward layer.
    d_ff: int
    layers: int
    heads: int
    vocabulary: int = VOCABULARY


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
EXAMPLE = "d512-ff1376-l6-h8-v10000"


def find(name: str) -> Preset | None:
    """Return the preset of this name or of these sizes; None for other text. Raises ValueError for impossible sizes."""
    match = _SIZES.fullmatch(name)
    if not match:
        return PRESETS.get(name)
    sizes = [int(size) for size in match.groups()]
    if 0 in sizes:
        raise ValueError(f"{name}: every size must be at least 1")
    preset = Preset(*sizes)
    # Rotary positions rotate pairs of elements of a head.
    if preset.d_model % (2 * preset.heads):
        raise ValueError(
            f"{name}: a width of {preset.d_model} is not divided into {preset.heads} heads of an even width"
        )
    return preset


def gradients(preset: Preset, itemsize: int = 4) -> tuple[Gradient, ...]:
    """Return the gradients of a preset, in order of parameter registration. itemsize: bytes of an element."""
    width, hidden = preset.d_model, preset.d_ff
    layer = {
        "norm1.weight": width,
        **dict.fromkeys([f"attention.{name}.weight" for name in ("q", "k", "v", "out")], width * width),
        "norm2.weight": width,
        **dict.fromkeys([f"feed_forward.{name}.weight" for name in ("gate", "up", "down")], width * hidden),
    }
    named = {"embedding.weight": preset.vocabulary * width}
    for number in range(preset.layers):
        named |= {f"layers.{number}.{name}": elements for name, elements in layer.items()}
    named |= {"norm.weight": width, "head.weight": preset.vocabulary * width}
    return tuple(Gradient(name, elements, elements * itemsize) for name, elements in named.items())


def parameters(preset: Preset) -> int:
    """Return the number of parameters of a preset."""
    return sum(gradient.elements for gradient in gradients(preset))
