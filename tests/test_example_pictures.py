"""Every picture of the pages is one that `make pictures` draws."""

import re

from tools.example_pictures import IMAGES, ROOT, SHOWN


def test_every_picture_is_made_here_and_shown_on_a_page():
    made = {f"{name}.png" for shown in SHOWN.values() for name in shown}
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    shown = {name for page in pages for name in re.findall(r"images/([\w-]+\.png)", page.read_text())}
    assert made == shown == {path.name for path in IMAGES.glob("*.png")}
