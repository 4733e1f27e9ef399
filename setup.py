"""Add to the metadata what pyproject.toml cannot compute: the README with links that work elsewhere, and addresses.

Version and addresses come from `bench/collbench`. Without an address, links keep their text only, and pictures go.
"""

import re
import sys
from pathlib import Path

from setuptools import setup

sys.path.insert(0, "bench")
from collbench.model import pages

LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:)([^)\s]*)\)")


def target(link: re.Match[str]) -> str:
    """Return a link or a picture of the README with the address of its file."""
    picture, text, path = link.groups()
    if not (address := pages.source(path)):
        return "" if picture else text
    return f"{picture}[{text}]({address}{'?raw=true' if picture else ''})"


addresses = {
    "Source": pages.REPOSITORY,
    "Documentation": pages.ADDRESS,
    "Changelog": pages.source("CHANGELOG.md"),
}
setup(
    long_description=LINK.sub(target, Path("README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
    project_urls={name: address for name, address in addresses.items() if address},
)
