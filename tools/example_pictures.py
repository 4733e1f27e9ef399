"""Draw docs/images/ and write a sample report from the runs that are kept in docs/example/.

`make pictures` runs it. Pixels differ between versions of libraries, so docs/images/made-from.json has fingerprints of
each run's samples and of the modules that draw. `--check` compares these fingerprints and draws nothing (`.ci/run`).
They do not cover the conclusions of the analysis.
"""

import hashlib
import json
import shutil
import sys
import tempfile
from pathlib import Path

from collbench.cli.output import analyzed
from collbench.report import document, markdown, plots
from collbench.report.view import View
from collbench.store import folders

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES, IMAGES = ROOT / "docs" / "example", ROOT / "docs" / "images"
MADE_FROM, REPORT = IMAGES / "made-from.json", EXAMPLES / "report.md"
# Run in docs/example/ → its pictures that a page shows.
SHOWN = {
    "gloo": ("time",),
    "before": ("modes",),
    "training": ("training-timeline", "training-buckets", "training-buckets-2"),
    "replay": ("recorded",),
}
# The modules that lay out and label pictures.
DRAWING = (
    *(f"report/plots/{name}.py" for name in ("figures", "panels", "sizes", "ranks_and_time")),
    *("packages/training/report/plots.py", "packages/replay/plots.py"),
)


def made_from() -> dict[str, str]:
    """Return the fingerprints of the current runs and code."""
    runs = (EXAMPLES / name / "samples.jsonl" for name in SHOWN)
    files = [*runs, *(ROOT / "bench/collbench" / name for name in DRAWING)]
    return {str(file.relative_to(ROOT)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def report() -> str:
    """Return the report of the run `gloo`, as a page."""
    run = folders.read(EXAMPLES / "gloo")
    return markdown.written(document.build(View(run, analyzed(run)), [("Time against size", "time")], "../images"))


def stale() -> bool:
    """Return whether pictures were made from other runs or other code, or the report has another text."""
    return json.loads(MADE_FROM.read_bytes()) != made_from() or REPORT.read_text() != report()


def draw() -> None:
    """Draw the pictures; write their fingerprints and the report."""
    for name, shown in SHOWN.items():
        run = folders.read(EXAMPLES / name)
        with tempfile.TemporaryDirectory(prefix="pictures-") as folder:
            plots.draw(View(run, analyzed(run)), Path(folder))
            for picture in shown:
                shutil.copyfile(Path(folder) / f"{picture}.png", IMAGES / f"{picture}.png")
    MADE_FROM.write_text(json.dumps(made_from(), indent=1) + "\n")
    REPORT.write_text(report())


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit("docs/images/ or docs/example/report.md is stale: make pictures" if stale() else 0)
    draw()
