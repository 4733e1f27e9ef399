"""Reports, pages, tables and pictures show measured values with units, and embed nothing from outside.

report.html fits a phone and a desk without scrolling sideways, in light and in dark.
"""

import dataclasses
import io
import json
import re
import shutil
import subprocess

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from matplotlib import rc_context

from collbench.analyze.analysis import analyze
from collbench.catalog.registry import PACKAGES
from collbench.catalog.subgroups import rounds
from collbench.machine.host import REALTIME_REFUSED
from collbench.model.conclusions import Analysis, Diagnosis
from collbench.model.notices import kind_named
from collbench.model.records import Case, Failure, Samples, Skip
from collbench.model.visible import visible
from collbench.packages.interop.importers.nccl_tests import RECORDED_ERROR
from collbench.report import document, machine_format, markdown, plots
from collbench.report.markdown import written
from collbench.report.plots import PICTURES, draw, figures
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


def test_invisible_characters_are_escaped_as_in_json():
    for text in ("\x1b[2J", "\x9b5m", "\u202e", "\ud800", "\u2028", "\U000e0041", "\x00\x7f"):
        assert visible(text).isprintable() and json.loads(f'"{visible(text)}"') == text
    assert visible("µs → ±5 %\n\té") == "µs → ±5 %\n\té"


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


# ── the answer ───────────────────────────────────────────────────────────────────────────────────
def answer(*summaries, notices=()):
    return document.answer(View(invented_run([]), Analysis(summaries, tuple(notices), Diagnosis(()))))


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
