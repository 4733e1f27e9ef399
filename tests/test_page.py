"""report.html fits a phone and a desk without scrolling sideways, in light and in dark, and shows its pictures."""

import json
import re
import shutil
import subprocess

import pytest

from collbench.cli.output import analyzed
from collbench.report import document, plots
from collbench.report.view import View
from collbench.store import folders
from conftest import ROOT

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

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


@pytest.mark.parametrize(("name", "scheme"), [("before", "dark"), ("training", "light")])
def test_a_report_fits_a_phone_and_a_desk(name, scheme, tmp_path, monkeypatch):
    """The reports are of kept runs with pictures: of collectives, and of training steps, whose tables are wide."""
    run = folders.read(ROOT / "docs/example" / name)
    analysis = analyzed(run)
    monkeypatch.setattr(plots, "PICTURES", [kind for kind in plots.PICTURES if kind.name != "modes"])
    pictures = plots.draw(View(run, analysis), tmp_path)
    page = document.documents(View(run, analysis), pictures, tmp_path, tmp_path)["report.html"]
    # The real page forbids scripts that are not its own.
    text = re.sub(r"<meta http-equiv=[^>]*>", "", page)
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
