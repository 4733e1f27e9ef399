"""Adapt mkdocs (mkdocs.yml) by hooks: add pages from outside docs/, and handle links to files that no page shows.

README, CONTRIBUTING, CHANGELOG and proof/accuracy.md are pages of the site. A link to another file of the repository,
such as an example, points to `repo_url`; without that address, its text stays and the link is removed.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
# Page of the site → file of the repository.
OUTSIDE = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changes.md": "CHANGELOG.md",
    "accuracy.md": "proof/accuracy.md",
}
PAGE_OF = {source: page for page, source in OUTSIDE.items()}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:|#)([^)#\s]*)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages from outside docs/."""
    for page, source in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Change links so that they point to the same targets as in the repository."""
    here = page.file.src_uri
    source = OUTSIDE.get(here, f"docs/{here}")

    def target(link: re.Match[str]) -> str:
        picture, text, address, anchor = link[1], link[2], link[3], link[4] or ""
        place = posixpath.normpath(posixpath.join(posixpath.dirname(source), address))
        if not (ROOT / place).exists():
            return link[0]  # mkdocs reports it
        inside = PAGE_OF.get(place, place.removeprefix("docs/") if place.startswith("docs/") else "")
        if inside and files.get_file_from_path(inside):
            return f"{picture}[{text}]({posixpath.relpath(inside, posixpath.dirname(here) or '.')}{anchor})"
        return f"[{text}]({config.repo_url.rstrip('/')}/{place})" if config.repo_url else text

    return LINK.sub(target, markdown)
