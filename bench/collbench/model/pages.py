"""Find what comes with CollBench, and give addresses of its pages and files; no other module forms addresses.

`setup.py` puts them into the metadata, and `mkdocs.yml` into the site.
"""

from pathlib import Path

from collbench import __version__

# Folder that has configs/ and docs/: in a checkout they are links.
SHIPPED = Path(__file__).parents[1]

# Address at which docs/ is published, with a slash at its end; empty if docs/ is not published.
ADDRESS = ""
# Address of the repository on GitHub, without a slash at its end; empty if it is not published.
REPOSITORY = ""


def page(name: str) -> str:
    """Return address or command of a page. name: its path in docs/ without suffix, such as `studies/gloo-stalls`."""
    return f"{ADDRESS}{name}/" if ADDRESS else f"collbench docs {name.rpartition('/')[2]}"


def at_hand(path: Path) -> Path:
    """Return a path, or the example that comes with CollBench if the path is not here: `docs/example/gloo`."""
    shipped = path.parts[:2] == ("docs", "example") and not path.exists() and (SHIPPED / path).exists()
    return SHIPPED / path if shipped else path


def source(path: str) -> str:
    """Return the address of a file of the repository, as it is in this version; empty without a repository."""
    return f"{REPOSITORY}/blob/v{__version__}/{path}" if REPOSITORY else ""
