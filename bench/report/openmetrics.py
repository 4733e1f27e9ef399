"""Write gauges as OpenMetrics has them, which node_exporter's textfile collector reads.

In: names, labels, values. Out: lines; the last line of a file is `END`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from bench.model.notices import Notice

END = "# EOF"
_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def gauge(
    name: str, rows: Iterable[tuple[Mapping[str, str], float | None]], about: str = "", unit: str = ""
) -> list[str]:
    """A gauge with a value for each set of labels; no line without a value. Labels without a text are left out."""
    told = [f"{name}{{{_text(labels)}}} {value:.10g}" for labels, value in rows if value is not None]
    unit_line, about_line = [f"# UNIT {name} {unit}"] * bool(unit), [f"# HELP {name} {about}"] * bool(about)
    return [f"# TYPE {name} gauge", *unit_line, *about_line, *told] if told else []


def verdict(of: str, given: str, words: Iterable[str]) -> list[str]:
    """Which of these verdicts holds: 1, the others 0."""
    return gauge("collbench_verdict", [({"of": of, "verdict": word}, float(word == given)) for word in words])


def notices(of: str, found: Iterable[Notice]) -> list[str]:
    """How often each kind of notice was given."""
    counts = Counter(one.kind.value for one in found)
    return gauge("collbench_notices", [({"of": of, "kind": kind}, float(count)) for kind, count in counts.items()])


def _text(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{value.translate(_ESCAPED)}"' for name, value in labels.items() if value)
