"""Say what NCCL chose for each case, from the launch in which it was asked, and where its choice changes with the size.

In: a `Run`, whose environment has what NCCL told (`launch/sweep.py`). Out: summaries with a text such as `NVLS SIMPLE,
16 channels`, and sentences.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

from bench.model.conclusions import Summary
from bench.model.records import Json, Run
from bench.model.units import format_bytes


def with_choices(run: Run, summaries: Sequence[Summary]) -> list[Summary]:
    """The summaries, with what NCCL chose where it told."""
    told: dict[str, Json] = {}
    for session in run.environment:
        for launch in session.get("launches", []):
            told |= launch.get("chosen", {})
    return [replace(one, chosen=_text(told[one.case.key])) if one.case.key in told else one for one in summaries]


def _text(choice: Json) -> str:
    words = [part for part in (choice.get("kernel") or choice.get("algorithm"), choice.get("protocol")) if part]
    channels = choice.get("channels")
    return " ".join(words) + (f", {channels} channel{'s' if channels > 1 else ''}" if channels else "")


def changes(summaries: Sequence[Summary]) -> list[str]:
    """For each series of sizes in which the choice is not always the same, from which size on it is which."""
    series: dict[tuple[Any, ...], list[Summary]] = {}
    for one in summaries:
        if one.chosen:
            kind = tuple(value for name, value in asdict(one.case).items() if name != "size_bytes")
            series.setdefault(kind, []).append(one)
    found = []
    for members in series.values():
        ordered = sorted(members, key=lambda one: one.case.size_bytes)
        begins = [ordered[0], *(b for a, b in pairwise(ordered) if a.chosen != b.chosen)]
        if len(begins) > 1:
            case = ordered[0].case
            parts = [f"{one.chosen} from {format_bytes(one.case.size_bytes)} on" for one in begins]
            what = " ".join([case.op, case.dtype, f"{case.world_size} ranks", *case.extras])
            found.append(f"{what}: {'; '.join(parts)}")
    return found
