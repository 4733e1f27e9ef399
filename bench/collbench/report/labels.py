"""Describe cases in few words: labels, titles, and numbers with their intervals.

In: cases. Out: short texts. `describe` divides cases into parts, from which labels, titles and lists are made. If an
operation does not have a property, there is no part for it: a barrier has no size and no dtype.
Computes no statistics and no layout, and loads no large package.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from collbench.catalog.collectives import ALL_OPTIONS, OPERATIONS, place_named
from collbench.model.comparisons import Change, Unpaired
from collbench.model.conclusions import Interval
from collbench.model.projection import KINDS
from collbench.model.records import OPTIONS, Case, options_in
from collbench.model.units import counted as counted
from collbench.model.units import first_few, format_bytes, format_seconds

T = TypeVar("T")
# Replaces a number, a size or an interval that does not exist.
NOTHING = "-"
# Remark on times on virtual GPUs.
BY_RULE = "follow a rule; they were not measured on hardware"
SEPARATOR = " · "
# Options that are parts even at their default, and come first. Other options are parts only if they differ from it.
ALWAYS = ("reduce_op", "placement", "root", "metric", "buffers")
# Fields in the order of parts. A package names the options that come directly after the operation.
FIELDS = ("op", "backend", "dtype", "world_size", "size_bytes")
NAMES = tuple(dict.fromkeys([*FIELDS, *ALWAYS, *(option.name for option in ALL_OPTIONS)]))
# Longer lists of groups or parts are cut.
LONGEST = 24
# Options whose values the table of options cannot put into words. Empty words are left out.
WORDS: dict[str, Callable[[Case], str]] = {
    "metric": lambda case: metric_name(case),
    "depth": lambda case: "",  # the metric's name contains it
    "placement": place_named,
    "groups": lambda case: f"groups {short(str(case.groups))}",
    "splits": lambda case: f"parts {short(str(case.splits))}",
}


def short(text: str) -> str:
    """Return the text of a division or distribution, cut after LONGEST characters."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


# ── numbers ──────────────────────────────────────────────────────────────────────────────────────
def size_text(size_bytes: int) -> str:
    """Format a size; a dash if there is none."""
    return format_bytes(size_bytes) if size_bytes else NOTHING


def optional(value: T | None, text: Callable[[T], str]) -> str:
    """Format a value; a dash if there is none."""
    return NOTHING if value is None else text(value)


def seconds_text(value: float | None) -> str:
    """Format a time; a dash if there is none."""
    return optional(value, lambda seconds: format_seconds(seconds) if seconds else "0 s")


def ranks_text(count: int) -> str:
    """Format a number of ranks: `1 rank`, `2 ranks`."""
    return counted(count, "rank")


def interval_text(interval: Interval | None, text: Callable[[float], str]) -> str:
    """Format an interval as `[1.00 – 1.20 ms]`; a dash if it is unknown."""
    if interval is None or not interval.known:
        return NOTHING
    return f"[{between(text(interval.low), text(interval.high))}]"


def with_interval(interval: Interval | None, text: Callable[[float], str]) -> str:
    """Format as `1.10 ms [1.00 – 1.20 ms]`; as `1.10 ms` if the interval is unknown; a dash if there is no value."""
    if interval is None:
        return NOTHING
    return text(interval.value) + (f" {interval_text(interval, text)}" if interval.known else "")


def between(low: str, high: str) -> str:
    """Format two limits as `1.00 – 1.20 ms`, or `900 µs – 1.20 ms`: a common unit is written once."""
    number, _, unit = low.rpartition(" ")
    return f"{number if number and high.endswith(f' {unit}') else low} – {high}"


def enumerated(values: Iterable[object], last: str = "and") -> str:
    """Join values as `2, 3 and 4`. last: the word before the last of them."""
    texts = [*map(str, values)]
    return f" {last} ".join(filter(None, [", ".join(texts[:-1]), *texts[-1:]]))


def known(*facts: tuple[str, object]) -> list[str]:
    """Return the texts of the facts that are known. facts: (template, value); None, "" and 0 are unknown."""
    return [template.format(value) for template, value in facts if value]


# ── parts of cases ───────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class CasePart:
    """One property of a case."""

    # Field of `Case`.
    name: str
    # Value of the field, as people read it.
    words: str
    # True if the part can be left out: an option that has its default in all described cases of the operation.
    usual: bool = False


Parts = list[CasePart]


def describe(cases: Sequence[Case]) -> tuple[Parts, list[Parts]]:
    """Return the common parts of the cases, and the other parts of each case: see `case_parts` and `divide`."""
    return divide(case_parts(cases))


def case_parts(cases: Sequence[Case]) -> list[Parts]:
    """Return all parts of each case.

    An option at its default is a part if it is one of ALWAYS and the operation has it, or if another case of the
    operation differs from it and the default is a word or a number above 0.
    """
    unusual: dict[str, set[str]] = {}
    for case in cases:
        options = (*OPTIONS, *options_in(type(case.own)))
        names = (option.name for option in options if case.value(option.name) != option.default)
        unusual.setdefault(case.op, set()).update(names)
    return [_parts(case, unusual[case.op]) for case in cases]


def divide(described: Sequence[Parts]) -> tuple[Parts, list[Parts]]:
    """Divide the parts of cases into the parts that all cases have in common, and the other parts of each case.

    The dtype and options of ALWAYS can be common even if some cases do not have them.
    """
    named: dict[str, Parts] = {}
    for parts in described:
        for part in parts:
            named.setdefault(part.name, []).append(part)
    common = [
        min(parts, key=lambda part: part.usual)
        for name, parts in named.items()
        if len({part.words for part in parts}) == 1 and (len(parts) == len(described) or name in {"dtype", *ALWAYS})
    ]
    names = {part.name for part in common}
    return common, [[part for part in parts if part.name not in names] for parts in described]


def _parts(case: Case, unusual: Collection[str]) -> Parts:
    """Return the parts of a case. unusual: options that are not at their default in some case of the operation."""
    operation = OPERATIONS[case.op]
    words = {
        "op": case.op,
        "backend": case.backend,
        "dtype": case.dtype if operation.typed else "",
        "world_size": ranks_text(case.world_size) if case.world_size else "",
        "size_bytes": format_bytes(case.size_bytes) if operation.sized and case.size_bytes else "",
    }
    options = {option.name: option for option in (*OPTIONS, *operation.own_options)}
    for name in (name for name in NAMES if name in options):
        option = options[name]
        if case.value(name) == option.default:
            has = operation.has(option) and (name != "placement" or len(operation.placements) > 1 or name in unusual)
            if not has or (name not in ALWAYS and (name not in unusual or not option.default)):
                continue
        words[name] = WORDS[name](case) if name in WORDS else option.in_words(case.value(name))
    names = dict.fromkeys(["op", *(name for name, option in options.items() if option.first), *words])
    return [CasePart(name, words[name], name in options and name not in unusual) for name in names if words.get(name)]


def label(case: Case) -> str:
    """Format as `all_reduce · gloo · float32 · 4 ranks · 1 MiB`; then the options that are not at their default."""
    return SEPARATOR.join(label_parts(case))


def label_parts(case: Case) -> list[str]:
    """Return the parts of a case's label."""
    return [part.words for part in describe([case])[0] if not part.usual]


def parts_on_both_sides(before: Case, after: Case) -> list[str]:
    """Return the parts of a label on two sides, such as `all_reduce`, `gloo`, `2 ranks`, `64 KiB → 80 KiB`."""
    old, new = label_parts(before), label_parts(after)
    if len(old) == len(new):
        return [a if a == b else f"{a} → {b}" for a, b in zip(old, new, strict=True)]
    shared = [word for word in old if word in new]
    default = "default" if before.scheduling == after.scheduling else "normal scheduling"
    differing = (", ".join(word for word in side if word not in shared) or default for side in (old, new))
    return [*shared, " → ".join(differing)]


def on_both_sides(pair: Change | Unpaired) -> str:
    """Return the label of a case on two sides."""
    return SEPARATOR.join(parts_on_both_sides(pair.case, pair.other))


def title(case: Case) -> str:
    """Format the title of a case's table: `all_reduce on gloo (float32, sum, in place, isolated, rotate buffers)`."""
    head, *words = in_words(describe([KINDS.residue(case)])[0])
    return f"{head} ({', '.join(words)})"


def without_usual(parts: Parts) -> Parts:
    """Return the parts that cannot be left out: the metric, and all parts that are not `usual`."""
    return [part for part in parts if part.name == "metric" or not part.usual]


def in_words(parts: Parts) -> list[str]:
    """Return the words of parts, such as `all_reduce on gloo`, `float32`."""
    head = " on ".join(part.words for part in parts if part.name in {"op", "backend"})
    return [*([head] if head else []), *(part.words for part in parts if part.name not in {"op", "backend"})]


def metric_name(case: Case) -> str:
    """Return the name of a case's metric, such as `isolated`, or `pipelined (20 back to back)`."""
    if OPERATIONS[case.op].against:  # timed from the beginning to the end of all, whatever its metric
        return f"{case.depth} {case.own.UNIT}s back to back" if case.depth > 1 else f"single {case.own.UNIT}s"
    return case.metric if case.depth == 1 else f"{case.metric} ({case.depth} back to back)"


def dtype_words(case: Case) -> list[str]:
    """Return a list with the dtype; empty if the operation has none."""
    return [case.dtype] if OPERATIONS[case.op].typed else []


def common_parts(parts: Sequence[Sequence[str]]) -> tuple[str, list[str]]:
    """Return the common parts of all labels, and each label without them, which is never empty. parts: of each label.

    Example: from `a · x · 1 KiB` and `a · x · 2 KiB`, `a · x`, then `1 KiB` and `2 KiB`. If labels have different
    numbers of parts, only common parts at the beginning count.
    """
    columns = [*zip(*parts, strict=False)]
    same = [at for at, column in enumerate(columns) if len({*column}) == 1]
    if len({*map(len, parts)}) > 1:
        same = [at for number, at in enumerate(same) if number == at][: len(columns) - 1]
    elif len(same) == len(columns):
        same = []
    different = [SEPARATOR.join(part for at, part in enumerate(row) if at not in same) for row in parts]
    return SEPARATOR.join(parts[0][at] for at in same), different


def span(cases: Sequence[Case]) -> str:
    """Describe many cases in one line: each value that occurs, once; sizes as a range. For one case, its label."""
    if len(cases) == 1:
        return label(cases[0])
    ranks = ", ".join(str(n) for n in sorted({case.world_size for case in cases}))
    sizes = sorted({case.size_bytes for case in cases if case.size_bytes})
    ends = dict.fromkeys(size_text(size) for size in [*sizes[:1], *sizes[-1:]])
    head = [_listed(case.op for case in cases), _listed(case.backend for case in cases)]
    tail = [f"{ranks} rank{'' if ranks == '1' else 's'}", " – ".join(ends)]
    return SEPARATOR.join(filter(None, [*head, *variety(cases), *tail]))


def variety(cases: Iterable[Case]) -> list[str]:
    """Return the dtypes of the cases, and the values of each option that differs among them or from its default."""
    values: dict[str, Parts] = {name: [] for name in NAMES}
    for parts in case_parts([KINDS.residue(case) for case in cases]):
        for part in parts:
            values[part.name].append(part)
    fields = [parts for name, parts in values.items() if name not in {"op", "backend"}]
    return [_listed(part.words for part in parts) for parts in fields if not all(part.usual for part in parts)]


def _listed(words: Iterable[str]) -> str:
    """Join the first few words, each once."""
    return first_few(list(dict.fromkeys(words)))
