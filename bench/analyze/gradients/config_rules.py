"""Which traps a configuration of the gradient benchmark runs into: one function for each G2xx of `traps.TRAPS`.

In: plain values of a YAML file, read tolerantly: what cannot be understood is left to `gradients.config`, which says
so when the file is used. Out: hits with the line of their key.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from bench.gradients.traps import Hit
from bench.units import parse_bytes

# What torch calls 25: MiB by its source, MB by its argument's name.
DEFAULT_CAPS = (25 * 10**6, 25 * 2**20)
# Backends whose communication is work of the cores that compute.
ON_CORES = ("gloo", "mpi")
# Strategies that have nothing to overlap.
BLOCKING = ("none", "naive", "flat")
LEAST_WARMUP = 2
LEAST_STEPS = 2


@dataclass(frozen=True, slots=True)
class Settings:
    """A file's values. strategies: name and settings of each. cores: of this machine."""

    data: dict[str, Any]
    strategies: tuple[tuple[str, dict[str, Any]], ...]
    cores: int

    def numbers(self, key: str, default: int) -> list[int]:
        """Whole numbers of a key that may hold one or a list."""
        found = [value for value in several(self.data.get(key, default)) if isinstance(value, int)]
        return [value for value in found if not isinstance(value, bool)]

    @property
    def backends(self) -> list[Any]:
        """As in `gradients.config`, gloo where none is named."""
        return several(self.data.get("backends", self.data.get("backend", "gloo")))


Found = Iterator[tuple[str, str]]


def several(value: Any) -> list[Any]:
    """A list of what may be one."""
    return value if isinstance(value, list) else [value]


def strategies(value: Any) -> tuple[tuple[str, dict[str, Any]], ...]:
    """Names with their settings, of `flat`, `{ddp: {cap: 25MB}}` or `{name: ddp, cap: 25MB}`."""
    found: list[tuple[str, dict[str, Any]]] = []
    for entry in several(value):
        if isinstance(entry, str):
            found.append((entry, {}))
        elif isinstance(entry, dict) and isinstance(entry.get("name"), str):
            found.append((entry["name"], entry))
        elif isinstance(entry, dict):
            found += [(str(name), more if isinstance(more, dict) else {}) for name, more in entry.items()]
    return tuple(found)


def short_warmup(settings: Settings) -> Found:
    """G201."""
    for steps in settings.numbers("warmup", LEAST_WARMUP):
        if steps < LEAST_WARMUP:
            yield "warmup", f"warmup: {steps}"


def default_cap(settings: Settings) -> Found:
    """G202."""
    for name, more in settings.strategies:
        caps = [_bytes(cap) for cap in several(more.get("cap"))] if name == "ddp" else []
        if set(caps) & set(DEFAULT_CAPS):
            yield "ddp", f"ddp: cap: {more['cap']}"


def _bytes(value: Any) -> int | None:
    try:
        return parse_bytes(value)
    except ValueError:
        return None


def bf16_on_gloo(settings: Settings) -> Found:
    """G203."""
    for name, more in settings.strategies:
        if name == "ddp" and "bf16" in several(more.get("options")) and "gloo" in settings.backends:
            yield "bf16", "ddp: options: bf16"


def crowded(settings: Settings) -> Found:
    """G204."""
    real = "links" not in settings.data or "real" in several(settings.data["links"])
    overlapping = any(name not in BLOCKING for name, _ in settings.strategies)
    threads, ranks = max(settings.numbers("threads", 1), default=1), max(settings.numbers("world_sizes", 2), default=2)
    if real and overlapping and set(map(str, settings.backends)) & set(ON_CORES) and threads * ranks > settings.cores:
        key = "threads" if "threads" in settings.data else "world_sizes"
        yield key, f"{threads} × {ranks} ranks on {settings.cores} cores"


def single_step(settings: Settings) -> Found:
    """G205."""
    for steps in settings.numbers("steps", LEAST_STEPS):
        if steps < LEAST_STEPS:
            yield "steps", f"steps: {steps}"


RULES: dict[str, Callable[[Settings], Found]] = {
    "G201": short_warmup,
    "G202": default_cap,
    "G203": bf16_on_gloo,
    "G204": crowded,
    "G205": single_step,
}


def hits(settings: Settings, text: str) -> list[Hit]:
    """All traps of a file, by line; `text` is the file, in which lines are looked up."""
    found = [Hit(code, _line(text, word), about) for code, rule in RULES.items() for word, about in rule(settings)]
    return sorted(found, key=lambda hit: (hit.line, hit.code))


def _line(text: str, word: str) -> int:
    """The first line outside comments that has the word; 1 if none."""
    pattern = re.compile(rf"\b{re.escape(word)}\b")
    lines = enumerate(text.splitlines(), start=1)
    return next((number for number, line in lines if pattern.search(line.partition("#")[0])), 1)
