"""The verbs that print files of CollBench: a configuration, the JSON Schema for editors, a page of documentation."""

from pathlib import Path
from typing import Annotated

import typer

from collbench.cli.app import ConfigName
from collbench.cli.terminal import say
from collbench.config import names
from collbench.model.errors import ConfigError
from collbench.model.pages import SHIPPED

SCHEMA, PAGES = SHIPPED / "configs" / "schema.json", SHIPPED / "docs"


def show(config: ConfigName) -> None:
    """To change it, write it to a file of your own: collbench show gloo > my.yaml."""
    text = names.path_of(config).read_text(encoding="utf-8")
    say(text.replace("$schema=schema.json", f"$schema={SCHEMA.as_uri()}", 1), nl=False)


def schema() -> None:
    """Print a schema: editors check and complete a file that begins with `# yaml-language-server: $schema=FILE`."""
    say(SCHEMA.read_text(encoding="utf-8"), nl=False)


def docs(
    page: Annotated[
        str | None,
        typer.Argument(help="A page (default: list them).", metavar="PAGE", autocompletion=lambda: [*_pages()]),
    ] = None,
) -> None:
    """Pages are in Markdown."""
    pages = _pages()
    if page is None:
        for name, path in pages.items():
            lines = path.read_text(encoding="utf-8").splitlines()
            heading = next((line.removeprefix("# ") for line in lines if line.startswith("# ")), "")
            say(f"{name:18} {heading}".rstrip())
    elif (name := Path(page).stem) in pages:
        say(pages[name].read_text(encoding="utf-8"), nl=False)
    else:
        raise ConfigError(f"{page}: no such page{names.allowed(name, [*pages])}")


def _pages() -> dict[str, Path]:
    return {path.stem: path for folder in (".", "studies", "develop") for path in sorted((PAGES / folder).glob("*.md"))}
