"""Adapt mkdocs (mkdocs.yml) by hooks: add pages from outside docs/, and handle links to files that no page shows.

Such a link, as to an example, points to the repository; while that has no address, only the link's text stays.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from collbench.model import pages

ROOT = Path(__file__).resolve().parents[1]
# File of the repository → page of the site.
OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
    "proof/accuracy.md": "accuracy.md",
}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:|#)([^)#\s]*)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages from outside docs/."""
    for source, page in OUTSIDE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Change links so that they point to the same targets as in the repository."""
    here = page.file.src_uri
    folder = Path(page.file.abs_src_path).parent

    def target(link: re.Match[str]) -> str:
        picture, text, address, anchor = link[1], link[2], link[3], link[4] or ""
        if not (folder / address).exists():
            return link[0]  # mkdocs reports it
        place = (folder / address).resolve().relative_to(ROOT).as_posix()
        inside = OUTSIDE.get(place, place.removeprefix("docs/") if place.startswith("docs/") else "")
        if inside and (file := files.get_file_from_path(inside)) and file.inclusion.is_included():
            return f"{picture}[{text}]({posixpath.relpath(inside, posixpath.dirname(here) or '.')}{anchor})"
        return f"[{text}]({pages.source(place)})" if pages.REPOSITORY else text

    return LINK.sub(target, markdown)
