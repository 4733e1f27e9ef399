"""Write how the times of cases developed over many runs, for people (Markdown) and programs (CSV, JSON).

In: `Trend` values. Out: text. Computes only layout and counts; the picture is in `plots.comparison`.
"""

import json
from collections.abc import Sequence

from bench.model.comparisons import Level, Trend
from bench.model.records import Json
from bench.model.units import format_seconds
from bench.report import markdown
from bench.report.comparison import csv_text
from bench.report.labels import label


def document(trends: Sequence[Trend], runs: Sequence[str]) -> str:
    """For people: how many cases changed their level, the runs with their numbers, one row per case."""
    changed = sum(bool(trend.changed) for trend in trends)
    total = f"{len(trends)} case{'' if len(trends) == 1 else 's'}"
    names = markdown.table([[str(number), name] for number, name in enumerate(runs, 1)], ["", "run"], ["right", "left"])
    rows = [
        [
            label(trend.case),
            str(len(trend.runs)),
            format_seconds(trend.times_s[0].value),
            format_seconds(trend.times_s[-1].value),
            f"{trend.times_s[-1].value / trend.times_s[0].value:.3f}",
            "; ".join(change_text(trend, level, runs) for level in trend.changed) or "steady",
        ]
        for trend in trends
    ]
    headers = ["case", "runs", "first", "last", "last / first", "level"]
    align = ["left", "right", "right", "right", "right", "left"]
    headline = f"{changed} of {total} changed level over {len(runs)} runs"
    return "\n\n".join([headline, names, markdown.table(rows, headers, align)])


def change_text(trend: Trend, level: Level, runs: Sequence[str]) -> str:
    """Such as `+31 % from run 6 on`."""
    alone = " (only the last run so far)" if level.first == len(trend.runs) - 1 else ""
    return f"{percent(level.ratio)} from run {runs.index(trend.runs[level.first]) + 1} on{alone}"


def percent(ratio: float) -> str:
    """A ratio as a change: `+31 %`."""
    return f"{ratio - 1:+.0%}".replace("%", " %")


def to_csv(trends: Sequence[Trend]) -> str:
    """One row per case and run."""
    return csv_text([{"key": row["key"], **time} for row in _rows(trends) for time in row["times"]])


def to_json(trends: Sequence[Trend], runs: Sequence[str]) -> str:
    """The runs, oldest first, and the cases with their times and steps."""
    return json.dumps({"runs": list(runs), "cases": _rows(trends)}, indent=1, ensure_ascii=False)


def _rows(trends: Sequence[Trend]) -> list[Json]:
    return [
        {
            "key": trend.case.key,
            "steps": [{"run": trend.runs[level.first], "ratio": level.ratio} for level in trend.changed],
            "times": [
                {
                    "run": run, "time_s": time.value, "time_low_s": time.low if time.known else None,
                    "time_high_s": time.high if time.known else None, "interval": time.kind,
                    "step": position in {level.first for level in trend.changed},
                }
                for position, (run, time) in enumerate(zip(trend.runs, trend.times_s, strict=True))
            ],
        }
        for trend in trends
    ]  # fmt: skip
