"""The time of a case is the same number everywhere: the mean over iterations, the geometric mean over launches."""

import csv
import io
import json
import re

import numpy as np
import pytest

from collbench.analyze.analysis import analyze
from collbench.analyze.compare import compare
from collbench.analyze.noise import entry_of
from collbench.analyze.summaries import headlines
from collbench.analyze.trend import trend
from collbench.model.records import Case
from collbench.model.units import format_rate, format_seconds
from collbench.packages.interop.report import nccl_tests
from collbench.report import document, junit, machine_format, tables
from collbench.report.markdown import written
from collbench.report.plots import ranks_and_time, sizes
from collbench.report.view import View
from conftest import invented_run, samples

CASES = [Case("all_reduce", "gloo", 2, "float32", size) for size in (4096, 10**6)]


def slowest_s(launch: int, size: int):
    """Return times of two modes that differ per launch: mean, median, mean of logs and fast mode are far apart."""
    dice = np.random.default_rng([launch, size])
    slow = np.where(dice.random(80) < 0.4, 6.0, 1.0)
    return 1e-3 * (1 + size / 10**6) * (1 + 0.1 * launch) * slow * dice.lognormal(0, 0.05, 80)


@pytest.fixture
def run():
    made = []
    for launch in range(1, 7):
        for case in CASES:
            slowest = np.round(1e9 * slowest_s(launch, case.size_bytes))
            made.append(samples(case, launch, np.stack([slowest, 0.9 * slowest], axis=1)))
    run = invented_run(made, launches=6)
    run.environment.append({"host": {"hostname": "a"}})
    return run


def time_of(size: int) -> float:
    """Compute the time of a case by its definition alone."""
    means = [np.mean(np.round(1e9 * slowest_s(launch, size))) / 1e9 for launch in range(1, 7)]
    return float(np.exp(np.mean(np.log(means))))


def exactly(run) -> dict[str, list[float]]:
    """Return the time of each case, from each output that has all digits of the time."""
    analysis = analyze(run)
    rows = list(csv.DictReader(io.StringIO(machine_format.to_csv(View(run, analysis)))))
    cases = json.loads(machine_format.to_json(View(run, analysis)))["cases"]
    factor = 1.0  # of bus bandwidth, at two ranks
    (figure,) = sizes.time_against_size(run, analysis)
    (rates,) = sizes.bandwidth_against_size(run, analysis)
    (modes,) = ranks_and_time.modes(run, analysis)
    (against_itself,) = (compare(run, run, headlines(run), headlines(run)),)
    trends = trend([(run, analysis.summaries)] * 3)
    size = [case.size_bytes for case in CASES]
    return {
        "CSV": [float(row["time_s"]) for row in rows],
        "bandwidth in the CSV": [int(row["size_bytes"]) / float(row["algbw"]) for row in rows],
        "JSON": [case["time_s"] for case in cases],
        "bandwidth in the JSON": [case["size_bytes"] * factor / case["busbw_bytes_per_s"] for case in cases],
        "picture": list(figure.axes[0].containers[0][0].get_ydata()),
        "picture of bandwidth": list(np.array(size) * factor / rates.axes[0].containers[0][0].get_ydata() / 1e9),
        "picture of modes": [axes.lines[0].get_xdata()[0] for axes in modes.axes],
        "compare": [change.before.value for change in against_itself.changes],
        "trend": [case_trend.times_s[0].value for case_trend in trends],
        "ledger": [noise.mean_s for noise in entry_of(run, analysis).cases.values()],
    }


def test_the_time_is_the_same_number_everywhere(run):
    expected = [time_of(case.size_bytes) for case in CASES]
    for place, times_s in exactly(run).items():
        assert times_s == pytest.approx(expected, rel=1e-9), place


def test_the_time_is_the_same_text_everywhere(run):
    analysis = analyze(run)
    view = View(run, analysis)
    texts = {
        "terminal": "\n".join(map(written, document.terminal(view))),
        "report": written(document.build(view)),
        "full table": written(tables.case_details(analysis.summaries)),
        "answer": "\n".join(document.answer(view)),
        "JUnit": junit.to_junit(view),
    }
    for case in CASES:
        for place, text in texts.items():
            if place == "answer" and case != CASES[0]:
                continue  # the answer names the smallest size
            assert format_seconds(time_of(case.size_bytes)) in text, place
        for place in ("terminal", "report", "full table"):
            rate = case.size_bytes / time_of(case.size_bytes)
            assert rate < tables.LEAST_RATE or format_rate(rate) in texts[place], place
    rows = [line.split() for line in nccl_tests.document(view).splitlines() if re.match(r" +\d", line)]
    for case, row in zip(CASES, rows, strict=True):
        (printed_us,) = [float(cell) for cell in row[5:] if cell.replace(".", "").isdigit()][:1]
        assert printed_us == pytest.approx(time_of(case.size_bytes) * 1e6, abs=0.006)
