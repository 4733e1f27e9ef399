"""The pictures of the pages are those that today's code draws of the kept example runs."""

import json
import re

import pytest

from example_pictures import IMAGES, MADE_FROM, ROOT, SHOWN, made_from

KEPT = json.loads(MADE_FROM.read_bytes())


def test_the_pictures_are_of_the_runs_that_are_kept():
    assert KEPT["samples"] == made_from()["samples"], "run: make pictures"


def test_the_pictures_are_drawn_by_this_code():
    now = made_from()
    if KEPT["python"] != now["python"]:
        pytest.skip(f"fingerprints of code differ between Python {KEPT['python']} and {now['python']}")
    assert KEPT["code"] == now["code"], "run: make pictures"


def test_every_picture_is_made_here_and_shown_on_a_page():
    made = {f"{name}.png" for shown in SHOWN.values() for name in shown}
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    shown = {name for page in pages for name in re.findall(r"images/([\w-]+\.png)", page.read_text())}
    assert made == shown == {path.name for path in IMAGES.glob("*.png")}
