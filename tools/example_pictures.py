"""Draws docs/images/ from the runs that are kept in docs/example/, and notes what they were made from.

`make pictures` runs it. Pixels differ from library to library, so docs/images/made-from.json has a fingerprint of each
run's samples and of the modules that draw. `--check` compares those, and draws nothing (`.ci/run`). What the analysis
concludes is not part of them.
"""

import hashlib
import json
import shutil
import sys
import tempfile
from pathlib import Path

from bench.cli.output import analyzed
from bench.report import plots
from bench.store import folders
from proof.code import fingerprint

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES, IMAGES = ROOT / "docs" / "example", ROOT / "docs" / "images"
MADE_FROM = IMAGES / "made-from.json"
# Run in docs/example/ → the pictures of it that a page shows.
SHOWN = {
    "before": ("time", "modes"),
    "training": ("training-timeline", "training-buckets"),
    "replay": ("recorded",),
}
# The modules that lay out and label pictures.
DRAWING = ("report/plots", "training/report/plots.py", "replay/plots.py", "bits/plots.py")


def made_from() -> dict[str, object]:
    """What the pictures would be made from now."""
    runs = {name: hashlib.sha256((EXAMPLES / name / "samples.jsonl").read_bytes()).hexdigest() for name in SHOWN}
    return {"samples": runs, "code": fingerprint(DRAWING)}


def stale() -> bool:
    """Whether the pictures are of other runs or other code than today's."""
    kept: object = json.loads(MADE_FROM.read_bytes())
    return kept != made_from()


def draw() -> None:
    """Draw the pictures, and write what they were made from."""
    for name, shown in SHOWN.items():
        run = folders.read(EXAMPLES / name)
        with tempfile.TemporaryDirectory(prefix="pictures-") as folder:
            plots.draw(run, analyzed(run), Path(folder))
            for picture in shown:
                shutil.copyfile(Path(folder) / f"{picture}.png", IMAGES / f"{picture}.png")
    MADE_FROM.write_text(json.dumps(made_from(), indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit("docs/images/ is stale: make pictures" if stale() else 0)
    draw()
