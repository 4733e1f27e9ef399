"""Write gauges in the OpenMetrics format, which node_exporter's textfile collector reads.

In: names, labels, values. Out: lines; the last line of a file is `END`. Every family has its type and a help. A verdict
is a number, so that a changed verdict stays in its time series; labels name the measured cases, not the time.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from collbench.model.notices import Notice
from collbench.model.records import Plan

END = "# EOF"
# Prefix of the names of our own gauges.
PREFIX = "collbench"
_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_MOMENT = re.compile(r"^\d{8}T\d{6}Z-")


def gauge(name: str, rows: Iterable[tuple[Mapping[str, str], float | None]], about: str, unit: str = "") -> list[str]:
    """Return a gauge, with a line for each set of labels that has a value. Labels without a text are left out."""
    lines = [f"{name}{{{_text(labels)}}} {value:.10g}" for labels, value in rows if value is not None]
    unit_line = [f"# UNIT {name} {unit}"] * bool(unit)
    return [f"# TYPE {name} gauge", *unit_line, f"# HELP {name} {about}", *lines] if lines else []


def verdicts(name: str, rows: Iterable[tuple[Mapping[str, str], str]], words: Sequence[str], about: str) -> list[str]:
    """Return a gauge of verdicts as numbers: their position in `words`, which the help explains."""
    meaning = ", ".join(f"{number} {word}" for number, word in enumerate(words))
    return gauge(name, [(labels, float(words.index(word))) for labels, word in rows], f"{about}: {meaning}.")


def notices(labels: Mapping[str, str], reported: Iterable[Notice]) -> list[str]:
    """Return a gauge of how often each kind of notice was given."""
    counts = Counter(notice.kind for notice in reported)
    rows = [({**labels, "kind": kind}, float(count)) for kind, count in counts.items()]
    return gauge(f"{PREFIX}_notices", rows, "How often a kind of notice was given.")


def series_of(plan: Plan) -> dict[str, str]:
    """Return labels of a run: its name without its time, and a digest of cases, equal for runs of one configuration."""
    keys = "\n".join(sorted({case.key for case in plan.cases}))
    return {"run": plan.name, "config": hashlib.sha256(keys.encode()).hexdigest()[:8]}


def timeless(run: str) -> str:
    """Return the name of a run's folder without its time."""
    return _MOMENT.sub("", run)


def _text(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{value.translate(_ESCAPED)}"' for name, value in labels.items() if value)
