"""What dashboards read: OpenMetrics as the reference parser of prometheus_client reads it, and JSON line by line."""

import json

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from bench.analyze.analysis import analyze
from bench.model.records import Case, Failure
from bench.packages.interop.report import dashboards
from bench.report.openmetrics import END, gauge
from bench.report.view import View
from conftest import ROOT, invented_run, samples
from test_report import misfits

CASE = Case("all_reduce", "gloo", 2, "float32", 2**20)


def steady(ms):
    return [[ms * 1e6, ms * 1e6]] * 12


def a_run(launches=5, **more):
    return invented_run(
        [samples(CASE, n, steady(1 + n / 100), **more) for n in range(1, launches + 1)], launches=launches
    )


def gauges(run):
    families = text_string_to_metric_families(dashboards.openmetrics(View(run, analyze(run))) + "\n")
    return {sample.name: sample for family in families for sample in family.samples}


def test_the_reference_parser_reads_every_gauge():
    run = a_run()
    (summary,) = analyze(run).summaries
    found = gauges(run)
    time_s, busbw = summary.time_s, summary.busbw
    assert found["nccl_collective_exec_time_microseconds"].value == pytest.approx(time_s.value * 1e6, rel=1e-5)
    assert found["nccl_collective_exec_time_microseconds_low"].value == pytest.approx(time_s.low * 1e6, rel=1e-5)
    assert found["nccl_bus_bandwidth_gbs"].value == pytest.approx(busbw / 1e9, rel=1e-5)
    low, high = found["nccl_bus_bandwidth_gbs_low"].value, found["nccl_bus_bandwidth_gbs_high"].value
    assert low < busbw / 1e9 < high and found["collbench_launches"].value == 5
    labels = found["nccl_bus_bandwidth_gbs"].labels
    assert (labels["collective"], labels["nranks"], labels["message_size"]) == ("AllReduce", "2", "1 MiB")
    assert found["collbench_failed_measurements"].value == 0


def test_what_failed_has_no_gauge_and_is_counted():
    run = invented_run([samples(CASE, 1, steady(1), failure=Failure("wrong", 1, 'a "quoted"\nreason'))])
    found = gauges(run)
    assert "nccl_bus_bandwidth_gbs" not in found and found["collbench_failed_measurements"].value == 1


def test_labels_with_quotes_and_line_breaks_are_read_again():
    lines = gauge("m", [({"a": 'x"y\\z\nw', "empty": ""}, 1.0)])
    (family,) = text_string_to_metric_families("\n".join([*lines, END, ""]))
    assert family.samples[0].labels == {"a": 'x"y\\z\nw'}


def test_each_line_of_jsonl_is_a_case_by_the_schema():
    run = a_run()
    lines = [json.loads(line) for line in dashboards.jsonl(View(run, analyze(run))).splitlines()]
    schema = json.loads((ROOT / "docs" / "report-schema.json").read_text())
    assert [line["run"] for line in lines] == [run.name]
    for line in lines:
        case = {name: value for name, value in line.items() if name not in {"run", "started"}}
        assert misfits(case, schema["$defs"]["PublicCase"], schema) == []


def test_a_report_is_printed_in_both(warm):
    assert warm("run", warm.config(), "--no-plots").returncode == 0
    metrics, lines = (warm("report", "--format", name) for name in ("openmetrics", "jsonl"))
    assert metrics.returncode == lines.returncode == 0
    assert [*text_string_to_metric_families(metrics.stdout)] and json.loads(lines.stdout.splitlines()[0])["time_s"] > 0


def test_a_comparison_is_read_by_the_reference_parser(warm):
    before, after = (str(ROOT / "docs" / "example" / name) for name in ("before", "after"))
    done = warm("compare", before, after, "--format", "openmetrics")
    told = json.loads(warm("compare", before, after, "--format", "json").stdout)
    families = text_string_to_metric_families(done.stdout)
    found = {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}
    assert found["collbench_verdict", "compare", told["verdict"]] == 1
    for case in told["cases"]:
        ratio = found["collbench_time_ratio", case["name"], case["verdict"]]
        assert ratio == pytest.approx(case["ratio"], rel=1e-5)
        assert found["collbench_time_ratio_low", case["name"], case["verdict"]] < ratio
    trend = warm("compare", before, after, before, "--format", "openmetrics")
    assert trend.returncode == 2 and "is for two runs" in trend.stderr
