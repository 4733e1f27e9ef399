"""Dashboards can read the output: OpenMetrics, by the reference parser of prometheus_client, and JSON line by line."""

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from collbench.analyze.analysis import analyze
from collbench.model.records import Case, Failure
from collbench.packages.interop.report import dashboards
from collbench.report.openmetrics import END, gauge
from collbench.report.view import View
from collbench.store import folders
from conftest import ROOT, invented_run, samples
from test_report import misfits

CASE = Case("all_reduce", "gloo", 2, "float32", 2**20)
BEFORE, AFTER = (ROOT / "docs/example" / name for name in ("before", "after"))


def steady(ms):
    return [[ms * 1e6, ms * 1e6]] * 12


def a_run(launches=5, **more):
    return invented_run(
        [samples(CASE, n, steady(1 + n / 100), **more) for n in range(1, launches + 1)], launches=launches
    )


def gauges(run, **more):
    families = text_string_to_metric_families(dashboards.openmetrics(View(run, analyze(run)), **more) + "\n")
    return {sample.name: sample for family in families for sample in family.samples}


def test_the_reference_parser_reads_every_gauge():
    run = a_run()
    (summary,) = analyze(run).summaries
    by_name = gauges(run, prefix="nccl")
    time_s, busbw = summary.time_s, summary.busbw
    assert by_name["nccl_collective_exec_time_microseconds"].value == pytest.approx(time_s.value * 1e6, rel=1e-5)
    assert by_name["nccl_collective_exec_time_microseconds_low"].value == pytest.approx(time_s.low * 1e6, rel=1e-5)
    assert by_name["nccl_bus_bandwidth_gbs"].value == pytest.approx(busbw / 1e9, rel=1e-5)
    low, high = by_name["nccl_bus_bandwidth_gbs_low"].value, by_name["nccl_bus_bandwidth_gbs_high"].value
    assert low < busbw / 1e9 < high and by_name["collbench_launches"].value == 5
    labels = by_name["nccl_bus_bandwidth_gbs"].labels
    assert (labels["collective"], labels["nranks"], labels["message_size"]) == ("AllReduce", "2", "1 MiB")
    assert by_name["collbench_failed_measurements"].value == 0


def test_a_failed_case_has_no_gauge_and_is_counted():
    run = invented_run([samples(CASE, 1, steady(1), failure=Failure("wrong", 1, 'a "quoted"\nreason'))])
    by_name = gauges(run)
    assert not any("bandwidth" in name for name in by_name) and by_name["collbench_failed_measurements"].value == 1


def test_only_numbers_of_nccl_have_the_names_of_its_inspector():
    (summary,) = analyze(run := a_run()).summaries
    by_name = gauges(run)
    assert not [name for name in by_name if name.startswith("nccl")]
    assert by_name["collbench_call_time_seconds"].value == pytest.approx(summary.time_s.value, rel=1e-5)
    assert by_name["collbench_bus_bandwidth_bytes_per_second"].value == pytest.approx(summary.busbw, rel=1e-5)
    assert "mine_call_time_seconds" in gauges(run, prefix="mine")
    nccl = [samples(replace(CASE, backend="nccl"), n, steady(1)) for n in (1, 2)]
    assert "nccl_bus_bandwidth_gbs" in gauges(invented_run(nccl, launches=2))


def test_the_files_of_two_runs_do_not_collide_and_series_go_on():
    """Runs of one configuration always have equal labels; other runs have other labels, also for a common case."""

    def labelled(run):
        return {(name, *sorted(sample.labels.items())) for name, sample in gauges(run).items()}

    run, again = a_run(), a_run()
    wider = invented_run([samples(CASE, 1, steady(1)), samples(replace(CASE, size_bytes=4096), 1, steady(1))])
    assert labelled(run) == labelled(replace(again, path=Path("20270101T000000Z-later")))
    assert not labelled(run) & labelled(replace(wider, plan=replace(wider.plan, name=run.plan.name)))


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


def test_labels_with_quotes_and_line_breaks_are_read_again():
    lines = gauge("m", [({"a": 'x"y\\z\nw', "empty": ""}, 1.0)], "About it.")
    (family,) = text_string_to_metric_families("\n".join([*lines, END, ""]))
    assert family.samples[0].labels == {"a": 'x"y\\z\nw'}


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
