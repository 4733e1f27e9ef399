"""Dashboards can read the output: OpenMetrics, by the reference parser of prometheus_client, and JSON line by line."""

import json
import shutil
import subprocess

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from collbench.analyze.analysis import analyze
from collbench.model.records import Case, Failure
from collbench.packages.interop.report import dashboards
from collbench.report.view import View
from collbench.store import folders
from conftest import ROOT, invented_run, samples
from test_report import misfits

CASE = Case("all_reduce", "gloo", 2, "float32", 2**20)
BEFORE, AFTER = (ROOT / "docs/example" / name for name in ("before", "after"))


def steady(ms):
    return [[ms * 1e6, ms * 1e6]] * 12


def gauges(run, **more):
    families = text_string_to_metric_families(dashboards.openmetrics(View(run, analyze(run)), **more) + "\n")
    return {sample.name: sample for family in families for sample in family.samples}


def test_a_failed_case_has_no_gauge_and_is_counted():
    run = invented_run([samples(CASE, 1, steady(1), failure=Failure("wrong", 1, 'a "quoted"\nreason'))])
    by_name = gauges(run)
    assert not any("bandwidth" in name for name in by_name) and by_name["collbench_failed_measurements"].value == 1


def complaints(text: str) -> list[str]:
    """Return promtool's complaints about a file, without complaints about NCCL's units."""
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
    return [line for line in (done.stdout + done.stderr).splitlines() if not line.startswith("nccl_")]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not here (Debian: prometheus)")
def test_promtool_has_no_complaint(warm):
    before, after = map(str, (BEFORE, AFTER))
    assert complaints(warm("report", before, "--format", "openmetrics").stdout) == []
    assert complaints(warm("report", before, "--format", "openmetrics", "--prefix", "nccl").stdout) == []
    assert complaints(warm("compare", before, after, "--format", "openmetrics").stdout) == []


def test_each_line_of_jsonl_is_a_case_by_the_schema(warm):
    lines = [json.loads(line) for line in warm("report", str(BEFORE), "--format", "jsonl").stdout.splitlines()]
    schema = json.loads((ROOT / "docs" / "report-schema.json").read_text())
    assert [line["run"] for line in lines] == ["before"] * 20
    for line in lines:
        case = {name: value for name, value in line.items() if name not in {"run", "started"}}
        assert misfits(case, schema["$defs"]["CaseRow"], schema) == [] and case["time_s"] > 0
    metrics = warm("report", str(BEFORE), "--format", "openmetrics").stdout
    assert [*text_string_to_metric_families(metrics)]


def test_a_comparison_is_read_by_the_reference_parser(warm):
    before, after = map(str, (BEFORE, AFTER))
    done = warm("compare", before, after, "--format", "openmetrics")
    expected = json.loads(warm("compare", before, after, "--format", "json").stdout)
    families = text_string_to_metric_families(done.stdout)
    values = {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}
    sides = [expected["before"], expected["after"]]
    words = ["SAME", "SLOWER", "FASTER", "INCONCLUSIVE"]
    assert values["collbench_verdict", "compare", *sides] == words.index(expected["verdict"])
    for case in expected["cases"]:
        labels = (*sides, case["name"])
        assert values["collbench_case_verdict", *labels] == words.index(case["verdict"])
        assert values["collbench_time_ratio", *labels] == pytest.approx(case["ratio"], rel=1e-5)
        assert values["collbench_time_ratio_low", *labels] < values["collbench_time_ratio", *labels]
    trend = warm("compare", before, after, before, "--format", "openmetrics")
    assert trend.returncode == 2 and "is for two runs" in trend.stderr


def test_bencher_gets_each_time_with_its_interval():
    """Bencher's metric format is benchmark → measure → value, lower_value, upper_value; `latency` is in nanoseconds."""
    analysis = analyze(run := folders.read(BEFORE))
    benchmarks = json.loads(dashboards.bencher(View(run, analysis)))
    assert benchmarks.keys() == {summary.case.key for summary in analysis.summaries if summary.time_s}
    for summary in analysis.summaries:
        metric = benchmarks[summary.case.key]["latency"]
        assert metric["value"] == pytest.approx(1e9 * summary.time_s.value)
        assert metric["lower_value"] < metric["value"] < metric["upper_value"]
