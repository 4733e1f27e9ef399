"""Traps that a file runs into, as text for a terminal. Computes nothing but layout."""

from collections.abc import Sequence

from bench.gradients.traps import TRAPS, Hit
from bench.present.gradients.audit import plain


def text(path: str, hits: Sequence[Hit]) -> str:
    """One paragraph a trap: place, code and trap; reason; remedy."""
    return "\n".join(_paragraph(path, hit) for hit in hits) if hits else f"{path}: nothing found"


def _paragraph(path: str, hit: Hit) -> str:
    trap = TRAPS[hit.code]
    head = f"{path}:{hit.line}: {hit.code} {trap.what} ({plain(hit.about)})"
    return f"{head}\n    why: {trap.reason}\n    do:  {trap.remedy}"
