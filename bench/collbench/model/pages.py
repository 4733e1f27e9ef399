"""Find what comes with CollBench: its files, and the address of a page. No other module forms addresses."""

from pathlib import Path

# Folder that has configs/ and docs/: in a checkout they are links.
SHIPPED = Path(__file__).parents[1]

# Address at which docs/ is published, with a slash at its end; empty if docs/ is not published.
ADDRESS = ""


def page(name: str) -> str:
    """Return address or command of a page. name: its path in docs/ without suffix, such as `studies/gloo-stalls`."""
    return f"{ADDRESS}{name}/" if ADDRESS else f"collbench docs {name.rpartition('/')[2]}"


def at_hand(path: Path) -> Path:
    """Return a path, or the example that comes with CollBench if the path is not here: `docs/example/gloo`."""
    shipped = path.parts[:2] == ("docs", "example") and not path.exists() and (SHIPPED / path).exists()
    return SHIPPED / path if shipped else path
