"""Describe cases in few words, for table rows and titles, plot titles and the progress line.

In: cases. Out: short texts. An attribute that an operation does not have is left out: a barrier has no size, Python
objects have no dtype. Loads no large package.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bench.catalog.operations import OPERATIONS, placement
from bench.model.records import CASE_EXTRAS, Case
from bench.model.units import format_bytes

Words = dict[str, str]

NO_SIZE = "-"
SEPARATOR = " · "
# Values of one kind in a line: more make the line longer than a terminal is wide.
MOST_LISTED = 5
PLACES = {"in": "in place", "out": "out of place"}
# Attributes that are listed only if they are not at their default: a case without one has another value.
PARTIAL = {"scheduling", "call", "groups", "settings", "ctas", "memory", "oversubscribed", "alignment"}
# Attributes that are left out if they are at their default and the same in all cases of an operation.
UNSAID = ("reduce_op", "placement", "root", "buffers")
# Field of a case → its value in words.
WORDS: dict[str, Callable[[Any], str]] = {
    "reduce_op": str,
    "buffers": "{} buffers".format,
    "scheduling": "{} scheduling".format,
    "placement": lambda place: PLACES.get(place, place),
    "call": str,
    "root": "root {}".format,
    "groups": lambda groups: f"groups {_short(groups)}",
    "settings": str,
    "ctas": "{} CTAs".format,
    "memory": "{} memory".format,
    "oversubscribed": lambda _: "ranks share a GPU",
    "alignment": "{} buffers".format,
    "splits": lambda splits: f"parts {_short(splits)}",
    "counts": "counts {}".format,
    "recording": lambda recording: "{} calls ({})".format(*reversed(recording.split(":"))),
}
# Attributes that are said only where they are not at their default.
RARE = (
    "scheduling", "call", "groups", "settings", "ctas", "memory", "oversubscribed", "alignment",
    "splits", "counts", "recording",
)  # fmt: skip
# Longer lists of groups or parts are cut.
LONGEST = 24


def _short(text: str) -> str:
    """A division or a distribution; of a list of groups or parts, its beginning."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def label(case: Case) -> str:
    """Such as `all_reduce · gloo · float32 · 4 ranks · 1 MiB`; then what is not at its default."""
    size = [size_text(case.size_bytes)] if OPERATIONS[case.op].sized else []
    return " · ".join([case.op, case.backend, *dtype_words(case), ranks_text(case.world_size), *size, *extras(case)])


def common_parts(names: Sequence[str]) -> tuple[str, list[str]]:
    """What all labels have in common, and each label without it. A label is never left empty.

    Of `a · x · 1 KiB` and `a · x · 2 KiB`: `a · x`, then `1 KiB` and `2 KiB`.
    """
    parts = [name.split(SEPARATOR) for name in names]
    if len(parts) < 2 or len({len(one) for one in parts}) > 1:
        return "", list(names)
    same = [len(set(column)) == 1 for column in zip(*parts, strict=True)]
    if all(same):
        return "", list(names)
    kept = [SEPARATOR.join(part for part, shared in zip(one, same, strict=True) if not shared) for one in parts]
    return SEPARATOR.join(part for part, shared in zip(parts[0], same, strict=True) if shared), kept


def family(case: Case) -> str:
    """What a series of sizes has in common, without the world size: `all_reduce gloo float32` and the extras."""
    return " ".join([case.op, case.backend, *dtype_words(case), *extras(case)])


def metric_name(case: Case) -> str:
    """Such as `isolated`, or `pipelined (20 back to back)`."""
    return case.metric if case.depth == 1 else f"{case.metric} ({case.depth} back to back)"


def dtype_words(case: Case) -> list[str]:
    """The dtype, where the operation has one."""
    return [case.dtype] if OPERATIONS[case.op].typed else []


def size_text(size_bytes: int) -> str:
    """A size; a dash where there is none."""
    return format_bytes(size_bytes) if size_bytes else NO_SIZE


def ranks_text(count: int) -> str:
    """`1 rank`, `2 ranks`."""
    return f"{count} rank{'' if count == 1 else 's'}"


def extras(case: Case) -> list[str]:
    """Words for the attributes of a case that differ from the defaults, such as `max` or `root 1`."""
    found = []
    for name in CASE_EXTRAS:
        if getattr(case, name) == Case.__dataclass_fields__[name].default:
            continue
        if name == "metric":
            found.append(metric_name(case))
        elif name != "depth":  # the metric's name holds it
            found.append(WORDS[name](getattr(case, name)))
    return found


def attributes(case: Case) -> Words:
    """All attributes but size and ranks, in words; tables differ in these. Those that do not apply are left out."""
    operation = OPERATIONS[case.op]
    usual = {name for name in CASE_EXTRAS if getattr(case, name) == Case.__dataclass_fields__[name].default}
    found = {"op": case.op, "backend": case.backend, "dtype": case.dtype if operation.typed else ""}
    found["reduce_op"] = case.reduce_op if operation.reduces else ""
    found["placement"] = PLACES[placement(case)] if len(operation.placements) > 1 or "placement" not in usual else ""
    found["root"] = WORDS["root"](case.root) if operation.rooted else ""
    found["metric"] = metric_name(case)
    found["buffers"] = WORDS["buffers"](case.buffers) if operation.typed else ""
    for name in RARE:
        found[name] = "" if name in usual else WORDS[name](getattr(case, name))
    return {name: words for name, words in found.items() if words}


def common_words(several: Sequence[Words]) -> Words:
    """Attributes with one value in all. A case without an attribute counts as another value only for PARTIAL ones."""
    values: dict[str, dict[str, None]] = {}
    for words in several:
        for name, word in words.items():
            values.setdefault(name, {})[word] = None
    partly = {name for name in PARTIAL for words in several if name not in words}
    return {name: next(iter(found)) for name, found in values.items() if len(found) == 1 and name not in partly}


def in_words(words: Words) -> list[str]:
    """Such as `all_reduce on gloo`, `float32`."""
    rest = dict(words)
    head = " on ".join(filter(None, [rest.pop("op", ""), rest.pop("backend", "")]))
    return [*([head] if head else []), *rest.values()]


def words_to_show(cases: Iterable[Case]) -> dict[str, set[str]]:
    """Operation → the attributes in UNSAID that must be named: they differ among its cases or from the default."""
    seen: dict[str, dict[str, set[str]]] = {}
    unusual: dict[str, set[str]] = {}
    for case in cases:
        op = case.op
        unusual.setdefault(op, set()).update(extras(case))
        for name, word in attributes(case).items():
            seen.setdefault(op, {}).setdefault(name, set()).add(word)
    return {
        op: {name for name in UNSAID if len(words.get(name, ())) > 1 or words.get(name, set()) & unusual[op]}
        for op, words in seen.items()
    }


def said(words: Words, op: str, must: dict[str, set[str]]) -> Words:
    """The words without those of UNSAID that need not be named. must: from `words_to_show`."""
    return {name: word for name, word in words.items() if name not in UNSAID or name in must[op]}


def span(cases: Iterable[Case]) -> str:
    """Many cases in one line: every value that occurs in them, once; sizes as a range. For one case, its label."""
    found = list(cases)
    if len(found) == 1:
        return label(found[0])
    ranks = ", ".join(str(n) for n in sorted({case.world_size for case in found}))
    sizes = sorted({case.size_bytes for case in found if case.size_bytes})
    ends = dict.fromkeys(size_text(size) for size in [*sizes[:1], *sizes[-1:]])
    things = [_listed(case.op for case in found), _listed(case.backend for case in found), *variety(found)]
    return " · ".join([*things, f"{ranks} rank{'' if ranks == '1' else 's'}", *([" – ".join(ends)] if ends else [])])


def variety(cases: Sequence[Case]) -> list[str]:
    """The dtypes of the cases, and the values of each attribute that differs among them or from its default."""
    words = [attributes(case) for case in cases]
    unusual = {word for case in cases for word in extras(case)}
    parts = [_listed(word for case in cases for word in dtype_words(case))]
    must = set().union(*words_to_show(cases).values())
    for name in dict.fromkeys(name for one in words for name in one if name not in {"op", "backend", "dtype"}):
        if name in UNSAID and name not in must:
            continue
        values = dict.fromkeys(one[name] for one in words if name in one)
        if len(values) > 1 or unusual & set(values):
            parts.append(_listed(values))
    return [part for part in parts if part]


def _listed(words: Iterable[str]) -> str:
    """Each word once; if there are many, the first MOST_LISTED and the number of the others."""
    distinct = list(dict.fromkeys(words))
    more = f" and {len(distinct) - MOST_LISTED} more" if len(distinct) > MOST_LISTED + 1 else ""
    return ", ".join(distinct[:MOST_LISTED] if more else distinct) + more
