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

# Measures the page with all details open. A frame sets the width, as a window cannot be as narrow as a phone.
PROBE = """
const frame = document.querySelector("iframe");
frame.addEventListener("load", () => {
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
  document.body.dataset.seen = JSON.stringify({
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
});
frame.srcdoc = PAGE;
"""


@pytest.fixture(scope="module", params=["before", "training"])
def page(request, tmp_path_factory):
    """Return the report of a kept run with pictures: of collectives, or of training steps, whose tables are wide."""
    folder = tmp_path_factory.mktemp("plots")
    run = folders.read(ROOT / "docs/example" / request.param)
    analysis = analyzed(run)
    pictures = plots.draw(View(run, analysis), folder)
    return document.documents(View(run, analysis), pictures, folder, folder)["report.html"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_a_report_fits_a_phone_and_a_desk(page, width, scheme, tmp_path):
    # The real page forbids scripts that are not its own.
    text = re.sub(r"<meta http-equiv=[^>]*>", "", page)
    probe = PROBE.replace("PAGE", json.dumps(text).replace("</", "<\\/"))
    frame = f'<iframe style="width: {width}px; height: 2000px; border: 0"></iframe>'
    (tmp_path / "probe.html").write_text(f"<!doctype html><body>{frame}<script>{probe}</script>")
    done = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--hide-scrollbars", f"--user-data-dir={tmp_path / 'profile'}",
            f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}", "--window-size=1400,2000",
            "--virtual-time-budget=20000", "--dump-dom", (tmp_path / "probe.html").as_uri(),
        ],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    (measured,) = re.findall(r'data-seen="([^"]*)"', done.stdout) or [done.stderr]
    measured = json.loads(measured.replace("&quot;", '"'))
    assert measured["width"] == width >= measured["needed"]
    assert measured["images"] >= 3 and not measured["missing"]
    assert not measured["broken"]  # cells whose numbers are divided into lines
    assert measured["contrast"] > 7 and (measured["back"] < 0.1) == (scheme == "dark")
