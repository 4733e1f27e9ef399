"""Reports, pages, tables and pictures show measured values with units, and embed nothing from outside.

report.html fits a phone and a desk without scrolling sideways, in light and in dark.
"""

import base64
import dataclasses
import hashlib
import io
import json
import re
import shutil
import subprocess
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from jsonschema import Draft202012Validator
from markdown_it import MarkdownIt
from matplotlib import rc_context
from rich.console import Console

from collbench.analyze import trend
from collbench.analyze.analysis import analyze
from collbench.analyze.compare import compare, compare_runs
from collbench.analyze.summaries import headlines, summarize
from collbench.catalog.collectives import CALLS, OPERATIONS, usual
from collbench.catalog.registry import PACKAGES
from collbench.catalog.subgroups import rounds
from collbench.machine.host import REALTIME_REFUSED
from collbench.model.comparisons import Absence, Unpaired
from collbench.model.conclusions import Analysis, Diagnosis, Interval, Summary
from collbench.model.notices import kind_named
from collbench.model.records import Case, Failure, Samples, Skip
from collbench.model.visible import visible
from collbench.packages.interop.importers.nccl_tests import RECORDED_ERROR
from collbench.packages.replay.replayed_calls import Recording, ReplayOptions
from collbench.report import comparison, document, junit, machine_format, markdown, page, plots, tables
from collbench.report.blocks import keyed, table
from collbench.report.comparison import VERDICTS
from collbench.report.markdown import written
from collbench.report.plots import PICTURES, draw, figures
from collbench.report.plots import comparison as comparison_plots
from collbench.report.progress import CaseProgress
from collbench.report.screen import fitted
from collbench.report.view import View
from collbench.store import folders
from conftest import ROOT, invented_run, samples

CASES = [Case("all_reduce", "gloo", n, "float32", size) for n in (2, 4) for size in (4096, 65536, 10**6)]


def run_of(cases=CASES, launches=2, factor=1.0, **more):
    rng = np.random.default_rng(1)
    measured = [
        samples(
            case, launch, (factor * 1e5 * case.world_size * (1 + rng.random((30, case.world_size)))).astype(np.int64)
        )
        for launch in range(1, launches + 1)
        for case in cases
    ]
    return invented_run(measured + list(more.pop("also", [])), launches=launches, **more)


def test_a_failure_with_brackets_is_printed_as_it_is():
    """gloo's messages contain brackets: `[/pytorch/third_party/gloo/pair.cc:553] Connection closed`."""
    output = io.StringIO()
    with CaseProgress(Console(file=output, width=200), 2, 0) as progress:
        progress.ended(CASES[0], "RuntimeError: [/a/gloo/pair.cc:553] closed [red]")
    assert "[/a/gloo/pair.cc:553] closed [red]" in output.getvalue()


@pytest.fixture
def run():
    dead = Case("all_reduce", "gloo", 4, "float32", 2**20)
    return run_of(
        also=[Samples(dead, 1, 0.0, failure=Failure("killed", 3, "rank 3 was ended by SIGKILL"))],
        skips=[Skip(Case("all_reduce", "gloo", 6, "float32", 10**9), kind_named("no-gpu")())],
    )


def picture(name, run, analysis) -> str:
    """Return one picture as SVG, in which text stays text; drawing all pictures in both formats takes seconds."""
    file = io.StringIO()
    with rc_context(figures.STYLE):
        (figure,) = next(kind for kind in PICTURES if kind.name == name).drawn_by(run, analysis)
        figures.lay_out(figure, figures.REPORT)
        figure.savefig(file, format="svg")
    return file.getvalue()


def built(run, pictures=()):
    return document.build(View(run, analyze(run)), list(pictures), "../../plots/r")


def test_the_page_needs_no_other_file_and_may_run_its_own_script_only(run, tmp_path):
    (tmp_path / "time.png").write_bytes(b"\x89PNG")
    blocks = built(run, [("Time against size", "time")])
    html = page.page(blocks, "<b>title</b>", {"../../plots/r/time.png": tmp_path / "time.png"})
    assert re.findall(r'(?:src|href)="(?!data:|#|method.md)', html) == []
    assert "data:image/png;base64," in html and "<table" in html and "<nav>" in html
    assert "&lt;b&gt;title" in html and "url(" not in html and "@import" not in html
    assert html.count("<details>") == html.count("</details>") >= 3 and "bus bandwidth" in html
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in html and "unsafe-eval" not in html


# A text that a foreign file may hold in place of a host, a failure, a reason or the name of a run.
HOSTILE = (
    "<img src='http://a.example/1.png'>![x](http://a.example/2.png)[y](http://a.example)<http://b.example> "
    "https://c.example www.d.example | ` \x1b[2J\x1b]0;t\x07\x9b5m\u202e\ud800\r\n\n# Trust: all good\n"
    "[z]: http://e.example\n<details open><summary>ours</summary>\n<script>alert(1)</script>"
)


def hostile_run():
    dead = Case("all_reduce", "gloo", 4, "float32", 2**20)
    run = run_of(
        also=[Samples(dead, 1, 0.0, failure=Failure("raised", 3, HOSTILE))],
        skips=[Skip(Case("all_reduce", "gloo", 6, "float32", 10**9), REALTIME_REFUSED(text=HOSTILE))],
    )
    host = {"hostname": HOSTILE, "cpu": {"model": HOSTILE}, "gpus": [{"name": HOSTILE}], "packages": {"torch": HOSTILE}}
    manifest = run.manifest | {"name": HOSTILE, "status": HOSTILE, "argv": [HOSTILE]}
    return dataclasses.replace(
        run,
        manifest=manifest,
        environment=[{"host": host}],
        notices=(RECORDED_ERROR(error=HOSTILE),),
    )


def test_documents_hold_nothing_that_runs_loads_or_links(tmp_path):
    """Neither a browser nor a Markdown viewer loads anything because of the text in a host's name."""
    run = hostile_run()
    (tmp_path / "time.png").write_bytes(b"\x89PNG")
    files = document.documents(View(run, analyze(run)), [("Time against size", "time")], tmp_path, tmp_path)
    text, html = files["report.md"], files["report.html"]
    assert [line for line in text.split("\n") if "![" in line] == ["![Time against size](./time.png)"]
    marks = [line for line in text.split("\n") if "<" in line]
    assert {re.sub("summary>.*?<", "summary><", line) for line in marks} <= {
        markdown.OPENED.format(""),
        markdown.CLOSED,
    }
    assert not re.search(r"\]\(http|://|www\.|^\[z\]|^# Trust", text, re.MULTILINE)
    assert re.findall(r"<(?:img|a|script|link|iframe|object)\b[^>]*", html.replace('<a href="#part-', "")) == [
        "<script",
        *re.findall(r'<img src="data:image/png;base64,[^"]*" alt="Time against size" /', html),
    ]
    assert html.count("<img") == 1 and "Content-Security-Policy" in html and "default-src 'none'" in html
    for content in files.values():
        assert visible(content) == content


def test_a_bar_in_a_name_does_not_divide_its_cell():
    blocks = table([("a|b\nc", "d\\|e")], keyed([("one", 0), ("two", 1)], lambda row, number: row[number], "left"))
    text = written(blocks)
    html = MarkdownIt("commonmark").enable("table").render(text)
    assert len(text.strip().split("\n")) == 3 and html.count("<td") == 2 and "a|b c" in html
    assert page.page(blocks, "t", {}).partition("<details>")[0].count("<td") == 2
    assert "a|b c" in fitted(blocks, 80) and "d\\|e" in fitted(blocks, 80)


def test_csv_and_junit_hold_no_formula_and_no_control_character():
    run = hostile_run()
    suite = ElementTree.fromstring(junit.to_junit(View(run, analyze(run))))
    assert any("\\u001b" in (case.get("message") or "") for case in suite.iter())
    rows = machine_format.csv_text([{"a": "=1+1", "b": "@x", "c": -1.5, "d": " +x", "e": "x\x1b", "f": "-"}])
    assert rows.splitlines()[1].split(",") == ["'=1+1", "'@x", "-1.5", "' +x", "x\\u001b", "'-"]


def test_invisible_characters_are_escaped_as_in_json():
    for text in ("\x1b[2J", "\x9b5m", "\u202e", "\ud800", "\u2028", "\U000e0041", "\x00\x7f"):
        assert visible(text).isprintable() and json.loads(f'"{visible(text)}"') == text
    assert visible("µs → ±5 %\n\té") == "µs → ±5 %\n\té"


def test_the_csv_is_typed(run):
    frame = pd.read_csv(io.StringIO(machine_format.to_csv(View(run, analyze(run)))))
    assert frame["size_bytes"].dtype == "int64" and frame["launches"].dtype == "int64"
    for name in ("time_s", "time_low_s", "time_high_s", "algbw", "busbw"):
        assert frame[name].dtype == "float64", name
    assert len(frame) == len(CASES) + 1
    assert frame["time_s"].isna().sum() == 1


def misfits(value, schema, root):
    """List where a value contradicts a JSON Schema, also by names that the schema lacks."""
    closed = json.loads(
        json.dumps({**schema, "$defs": root["$defs"]}),
        object_hook=lambda part: {"additionalProperties": False, **part} if "properties" in part else part,
    )
    return [error.json_path for error in Draft202012Validator(closed).iter_errors(value)]


def test_the_json_fits_its_schema(run):
    analysis = analyze(run)
    document = json.loads(machine_format.to_json(View(run, analysis)))
    schema = machine_format.run_schema()
    assert misfits(document, schema, schema) == []
    assert document["run"]["name"] == run.name and len(document["cases"]) == len(CASES) + 1
    assert document["cases"][0]["busbw_bytes_per_s"] == analysis.summaries[0].busbw
    assert document["cases"][-1]["time_s"] is None and document["cases"][-1]["failures"]
    assert [(entry["key"], entry["reason"]["kind"]) for entry in document["skipped"]] == [
        (skip.case.key, "no-gpu") for skip in run.plan.skips
    ]
    first = document["cases"][0]
    broken = {**document, "schema": 3, "cases": [{**first, "time_s": "1", "launches": None, "extra": 1}], "run": {}}
    assert {*misfits(broken, schema, schema)} == {"$.schema", "$.cases[0]", "$.run"}


def test_the_json_of_kept_runs_fits_the_schema_in_docs():
    for name in ("before", "replay", "training"):
        run = folders.read(ROOT / "docs" / "example" / name)
        document = json.loads(machine_format.to_json(View(run, analyze(run))))
        schema = json.loads((ROOT / "docs" / "report-schema.json").read_text())
        assert misfits(document, schema, schema) == [] and document["cases"]
        assert bool(document["scenarios"]) == (name == "training")


def test_the_json_of_comparisons_fits_the_schema_in_docs():
    runs = [folders.read(ROOT / "docs" / "example" / name) for name in ("before", "after", "training")]
    schema = json.loads((ROOT / "docs" / "comparison-schema.json").read_text())
    verdict = json.loads(machine_format.comparison_json(compare_runs(*runs[:2])))
    steps = json.loads(machine_format.comparison_json(compare_runs(runs[2], runs[2])))
    trends = trend.trend([(run, headlines(run)) for run in [runs[0]] * 3], 0.05)
    over_time = json.loads(machine_format.trend_json(trends, ["x", "y", "z"]))
    for printed in (verdict, steps, over_time):
        assert printed["schema"] == 1 and printed["cases"] and misfits(printed, schema, schema) == []
        assert misfits({**printed, "schema": 2}, schema, schema)
    assert (verdict["runs_before"], verdict["runs_after"]) == (["before"], ["after"])
    assert steps["cases"][0]["exposed_before_s"] > 0
    first = {name: value for name, value in verdict["cases"][0].items() if name != "p"}
    broken = {**verdict, "cases": [{**first, "level": "high"}], "verdict": None, "extra": 1}
    wrong = {*misfits(broken, schema["$defs"]["ComparisonDocument"], schema)}
    assert wrong == {"$", "$.verdict", "$.cases[0].level", "$.cases[0]"}


OF_A_PACKAGE = Case(
    "replay", "gloo", 2, "bytes", 1024, own=ReplayOptions(recording=Recording("5f0c2a91d3be", 3)), placement="in"
)


@pytest.mark.parametrize("case", [Case("all_reduce", "gloo", 2, "float32", 1024), OF_A_PACKAGE])
def test_a_run_whose_measurements_all_failed_is_reported_as_such(case):
    made = samples(case, 1, [[1, 1]])
    run = invented_run([dataclasses.replace(made, timed=None, failure=Failure("killed", 1, "rank 1 died"))])
    assert document.brief(View(run, analyze(run))).startswith(f"No number: 1 measurement failed; {case.op}")
    shown = "".join(map(written, document.terminal(View(run, analyze(run)))))
    assert "No number" in shown and document.NOTHING_MEASURED not in shown
    nothing = dataclasses.replace(run, samples=[])
    assert "No number" not in document.brief(View(nothing, analyze(nothing)))


def test_every_picture_has_its_units(tmp_path, also_svg):
    run = run_of([*CASES, *(dataclasses.replace(case, world_size=8) for case in CASES[:3])], launches=4)
    drawn = draw(View(run, analyze(run)), tmp_path)
    names = [kind.name for kind in PICTURES]
    package_pictures = {kind.name for package in PACKAGES for kind in package.pictures}
    assert [name for _, name in drawn] == [
        name for name in names if name not in {"matrix", "operations", "splits"} and name not in package_pictures
    ]
    words = {
        "time": ["message size per rank", "4 KiB", "time of one operation", "2 ranks", "µs"],
        "bandwidth": ["bus bandwidth, GB/s", "message size"],
        "scaling": ["number of ranks", "4 KiB", "time of one operation"],
        "modes": ["Distribution of the times", "time of one iteration", "µs", "%"],
        "over-time": ["seconds since", "4 ranks", "×"],
    }
    for _, name in drawn:
        assert (tmp_path / f"{name}.png").stat().st_size > 5000
        svg = (tmp_path / f"{name}.svg").read_text()
        for word in words[name]:
            assert word in svg, (name, word)


def test_a_picture_for_a_paper_fits_its_column(run, tmp_path, monkeypatch):
    monkeypatch.setattr(plots, "PICTURES", [kind for kind in PICTURES if kind.name == "time"])
    draw(View(run, analyze(run)), tmp_path, paper=True)
    svg, pdf = (tmp_path / "paper/time.svg").read_text(), (tmp_path / "paper/time.pdf").read_bytes()
    assert f'width="{3.3 * 72:g}pt"' in svg and "Time over message size" not in svg
    assert pdf.startswith(b"%PDF") and b"/Type3" not in pdf
    assert [path.suffix for path in tmp_path.glob("time.*")] == [".png"]


def test_findings_are_in_the_report_and_in_the_pictures():
    rng = np.random.default_rng(3)
    sizes = [4096 * 2**k for k in range(8)]
    made = [
        samples(case := Case("all_reduce", "gloo", 4, "float32", size), launch, times(rng, size))
        for launch in (1, 2, 3)
        for size in sizes
    ]
    pairs = Case("pairwise", "gloo", 4, "float32", 2**20)
    exchange = 1e6 * rng.lognormal(0, 0.05, (60, 4))
    for row in range(60):
        for pair in rounds(4)[row % 3]:
            exchange[row, list(pair)] *= 2 if 3 in pair else 1
    run = invented_run([*made, samples(pairs, 1, exchange)], launches=3)
    run = dataclasses.replace(run, plan=dataclasses.replace(run.plan, link_bytes_per_s=5e9))
    analysis = analyze(run)
    text = written(document.build(View(run, analysis), [], ""))
    for part in (
        "## What stands out",
        "**rank 3**",
        "<summary>How time depends on size</summary>",
        "link as given",
        "ring of measured",
    ):
        assert part in text, part
    assert "link as given: 5.00" in picture("bandwidth", run, analysis)
    heat = picture("matrix", run, analysis)
    assert "found: rank 3" in heat and "GB/s" in heat
    assert case.size_bytes == sizes[-1]


def times(rng, size):
    """Return times of calls that take 20 µs plus their size at 1 GB/s."""
    return np.repeat((2e4 + size) * rng.lognormal(0, 0.05, (40, 1)), 4, axis=1)


def test_a_run_without_numbers_still_gets_a_report(tmp_path):
    dead = invented_run([Samples(case, 1, 0.0, failure=Failure("hang", None, "nobody")) for case in CASES])
    assert draw(View(dead, analyze(dead)), tmp_path) == []
    assert "| failed |" in written(built(dead)).replace("  ", "")
    assert "## Failed" in written(built(dead))
    empty = invented_run([])
    assert "nothing was" in written(built(empty))


@pytest.fixture(scope="module")
def slower():
    """Return a comparison in which all six cases take half as long again."""
    return compared(1.5)


def compared(factor):
    old, new = run_of(launches=5), run_of(launches=5, factor=factor)
    return compare(old, new, summarize(old), summarize(new))


def test_a_comparison_is_drawn_and_tabled(slower, tmp_path, also_svg):
    assert comparison_plots.draw_comparison(slower, tmp_path).stat().st_size > 5000
    svg = (tmp_path / "comparison.svg").read_text().replace("\N{NO-BREAK SPACE}", " ")
    for word in ("time after / time before", "slower", "too small to matter (±5 %)", "6 slower", "4 KiB"):
        assert word in svg, word
    document = written(comparison.document(slower))
    assert document.startswith("SLOWER by 5") and "; 6 cases slower\n" in document
    assert document.count("| SLOWER") == len(CASES)
    data = json.loads(machine_format.comparison_json(slower))
    assert data["verdict"] == "SLOWER" and all(row["ratio"] == pytest.approx(1.5, rel=0.2) for row in data["cases"])
    assert len(pd.read_csv(io.StringIO(machine_format.comparison_csv(slower)))) == len(CASES)


@pytest.mark.parametrize(("factor", "words"), [(5, "SLOWER: 5 times as long"), (0.02, "FASTER: 50 times as fast")])
def test_a_large_change_is_given_as_a_factor(factor, words):
    headline = comparison.headline(compared(factor))
    match = re.match(r"(\w+): ([\d.]+)( times as \w+) overall \[([\d.]+) – ([\d.]+)\]", headline)
    assert f"{match[1]}: {max(factor, 1 / factor):g}{match[3]}" == words
    assert float(match[4]) <= float(match[2]) <= float(match[5])
    assert float(match[2]) == pytest.approx(max(factor, 1 / factor), rel=0.2)


def test_junit_counts_slower_as_failed_and_undecided_as_skipped(slower):
    changes = [
        dataclasses.replace(change, judgement=dataclasses.replace(change.judgement, verdict=v))
        for change, v in zip(slower.changes, VERDICTS, strict=False)
    ]
    result = dataclasses.replace(
        slower, changes=tuple(changes), broken=(Unpaired(CASES[5], CASES[5], Absence.FAILED, "killed"),)
    )
    (suite,) = ElementTree.fromstring(junit.comparison_junit(result))
    assert {name: suite.get(name) for name in ("tests", "failures", "skipped", "errors")} == {
        "tests": "6", "failures": "2", "skipped": "1", "errors": "1",
    }  # fmt: skip
    overall, failed = suite.findall("testcase[failure]")
    assert "the run as a whole" in overall.get("name")
    assert failed.get("name") == CASES[0].key and "ratio 1.5" in failed.find("failure").get("message")


def test_junit_of_a_run_fails_where_its_exit_code_is_1_and_fits_the_schema_of_ant():
    """The file has the required attributes, the required order of elements, the time of each case, and the host."""
    dead = Samples(CASES[0], 3, 0.0, failure=Failure("hang", None, "nobody"))
    skip = Skip(Case("all_reduce", "nccl", 2, "float32", 4096), kind_named("no-gpu")())
    for also, problems in (([], 0), ([dead], 1)):
        run = run_of(also=also, skips=[skip])
        analysis = analyze(run)
        (suite,) = ElementTree.fromstring(junit.to_junit(View(run, analysis)))
        assert [int(suite.get(name)) for name in ("tests", "failures", "skipped")] == [len(CASES) + 1, problems, 1]
        assert len(document.problems(run)) == problems
    assert suite.find("testcase/failure").get("message").startswith("nobody")
    assert suite.find("testcase/skipped").get("message").startswith("no NVIDIA GPU")
    assert set(suite.keys()) >= {
        "name", "package", "id", "timestamp", "hostname", "tests", "failures", "errors", "skipped", "time",
    }  # fmt: skip
    cases = suite.findall("testcase")
    assert [child.tag for child in suite] == ["properties", *["testcase"] * len(cases), "system-out", "system-err"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite.get("timestamp"))
    assert all(set(case.keys()) == {"name", "classname", "time"} and len(case) <= 1 for case in cases)
    assert all(problem.get("type") for case in cases for problem in case if problem.tag != "skipped")
    total = sum(float(case.get("time")) for case in cases)
    assert total > 0 and float(suite.get("time")) == pytest.approx(total, abs=0.01)


def test_the_answer_names_all_ranks_of_the_smallest_size_also_if_it_was_rounded_for_some():
    rounded = {
        2: Case("all_gather", "gloo", 2, "float32", 4096),
        3: Case("all_gather", "gloo", 3, "float32", 4092, asked_bytes=4096),
    }
    run = invented_run([samples(case, 1, np.full((4, n), n * 10**6)) for n, case in rounded.items()])
    (line, *_) = document.answer(View(run, analyze(run)))
    assert "≤ 4 KiB takes 2.00 ms with 2 ranks, 3.00 ms with 3 ranks" in line


def test_many_tables_become_one():
    cases = [Case(op, "gloo", 2, "float32", size) for op in CALLS for size in (4096, 2**20)]
    run = run_of([usual(case) for case in cases if OPERATIONS[case.op].sized or case.size_bytes == 4096])
    shown = written(tables.terminal_tables(tables.case_tables(summarize(run))))
    assert shown.count("\n|:--") == 1 and all(f"**{op} on gloo**" in shown for op in CALLS)


# ── the answer ───────────────────────────────────────────────────────────────────────────────────
ANSWERED = Case("all_reduce", "gloo", 2, "float32", 1024)
USUAL = Summary(ANSWERED, Interval(1e-3, 0.9e-3, 1.2e-3, "over launches"), busbw=1e8, launches=8, iterations=400)


def answer(*summaries, notices=()):
    return document.answer(View(invented_run([]), Analysis(summaries, tuple(notices), Diagnosis(()))))


def test_each_time_has_its_interval_and_a_caption_names_only_what_a_case_has():
    first, trust = answer(USUAL)
    assert "1 KiB takes 1.00 ms [900 µs – 1.20 ms] with 2 ranks" in first and "0.1 GB/s (2 ranks, 1 KiB)" in first
    assert "±15 %" in trust
    single = dataclasses.replace(USUAL, time_s=Interval(1e-3, 1e-3, 1e-3, "none"), busbw=1e6)
    assert tables.caption([single], False, True) == "Mean time, geometric over 8 launches (new ranks in each):"
    assert "each) ± half of its 95 % interval:" in tables.caption([single, USUAL], short=True, rates=False)
    barrier = dataclasses.replace(single, case=Case("barrier", "gloo", 2, "float32", 0))
    assert tables.case_grid(tables.case_tables([barrier]))[1].headers == ("2 ranks",)


@pytest.mark.parametrize(("backend", "machine"), [("gloo", ["A CPU", "16 cores"]), ("nccl", ["A GPU"])])
def test_a_report_names_the_hardware_that_measured(backend, machine):
    host = {"cpu": {"model": "A CPU", "usable_cores": 16}, "gpus": [{"name": "A GPU"}] * 8}
    run = run_of((dataclasses.replace(CASES[0], backend=backend),))
    run = dataclasses.replace(run, environment=[{"host": host}])
    assert document._where(run) == [run.name, *machine]
    assert document.machine_lines({"host": {"cpu": host["cpu"]}}) == ["**On**: 16 cores, A CPU"]


def test_a_time_that_is_only_the_clocks_is_not_an_answer():
    clock = dataclasses.replace(USUAL, timer_s=0.6e-3)
    first, _ = answer(clock)
    assert "no time, because the calls take as long as reading the clock" in first and "ms" not in first
    first, _ = answer(clock, dataclasses.replace(USUAL, case=dataclasses.replace(ANSWERED, world_size=4)))
    assert "with 4 ranks" in first and "2 ranks" not in first


def test_a_precision_is_missed_only_where_it_was_asked_for():
    def notes(relative_error):
        run = run_of(CASES[:1])
        sampling = dataclasses.replace(run.plan.settings.sampling, relative_error=relative_error)
        settings = dataclasses.replace(run.plan.settings, sampling=sampling)
        stopped = [dataclasses.replace(entry, stopped_by="time") for entry in run.samples]
        run = dataclasses.replace(run, plan=dataclasses.replace(run.plan, settings=settings), samples=stopped)
        text = written(document.build(View(run, analyze(run))))
        return "was not reached" in text, "time at ±" in text

    assert (notes(None), notes(0.9), notes(1e-6)) == ((False, False), (False, False), (True, True))


# ── in a browser ─────────────────────────────────────────────────────────────────────────────────
CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

# Measures the page with all details open. Frames set the width, as a window cannot be as narrow as a phone.
WIDTHS = (400, 1280)
PROBE = """
const seen = [];
document.querySelectorAll("iframe").forEach(frame => frame.addEventListener("load", () => {
  const page = frame.contentDocument, root = page.documentElement;
  page.querySelectorAll("details").forEach(part => { part.open = true; });
  const light = colour => {
    const [r, g, b] = colour.match(/[\\d.]+/g).map(c => c / 255).map(
      c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const style = name => frame.contentWindow.getComputedStyle(page.querySelector(name));
  const back = light(style("body").backgroundColor);
  const contrast = ["body", "th", "td", "summary", "nav a"].map(name => light(style(name).color)).map(
    text => (Math.max(text, back) + 0.05) / (Math.min(text, back) + 0.05));
  const images = [...page.images];
  seen.push({
    width: root.clientWidth,
    needed: Math.max(...[root, ...page.querySelectorAll("table")].map(part => part.scrollWidth)),
    back: back,
    contrast: Math.min(...contrast),
    images: images.length,
    missing: images.filter(image => !image.complete || !image.naturalWidth).map(image => image.alt),
    broken: [...page.querySelectorAll("td[style*=right]")].filter(cell => {
      const text = page.createRange();
      text.selectNodeContents(cell);
      return new Set([...text.getClientRects()].map(line => line.top)).size > 1;
    }).map(cell => cell.textContent),
  });
  document.body.dataset.seen = JSON.stringify(seen);
}));
document.querySelectorAll("iframe").forEach(frame => { frame.srcdoc = PAGE; });
"""


@needs_chromium
@pytest.mark.parametrize(("name", "scheme"), [("before", "dark"), ("training", "light")])
def test_a_report_fits_a_phone_and_a_desk(name, scheme, tmp_path, monkeypatch):
    """The reports are of kept runs with pictures: of collectives, and of training steps, whose tables are wide."""
    run = folders.read(ROOT / "docs/example" / name)
    analysis = analyze(run)
    monkeypatch.setattr(plots, "PICTURES", [kind for kind in plots.PICTURES if kind.name != "modes"])
    pictures = plots.draw(View(run, analysis), tmp_path)
    html = document.documents(View(run, analysis), pictures, tmp_path, tmp_path)["report.html"]
    # The real page forbids scripts that are not its own.
    text = re.sub(r"<meta http-equiv=[^>]*>", "", html)
    probe = PROBE.replace("PAGE", json.dumps(text).replace("</", "<\\/"))
    frames = "".join(f'<iframe style="width: {width}px; height: 2000px; border: 0"></iframe>' for width in WIDTHS)
    (tmp_path / "probe.html").write_text(f"<!doctype html><body>{frames}<script>{probe}</script>")
    done = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--hide-scrollbars", f"--user-data-dir={tmp_path / 'profile'}",
            f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}", "--window-size=1400,2000",
            "--virtual-time-budget=20000", "--dump-dom", (tmp_path / "probe.html").as_uri(),
        ],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    (seen,) = re.findall(r'data-seen="([^"]*)"', done.stdout) or [done.stderr]
    seen = sorted(json.loads(seen.replace("&quot;", '"')), key=lambda measured: measured["width"])
    assert [measured["width"] for measured in seen] == [*WIDTHS]
    for measured in seen:
        assert measured["needed"] <= measured["width"]
        assert measured["images"] >= 3 and not measured["missing"]
        assert not measured["broken"]  # cells whose numbers are divided into lines
        assert measured["contrast"] > 7 and (measured["back"] < 0.1) == (scheme == "dark")
