"""Print the lines of each room of bench/, of tests, proof and tools, and the words of the pages, next to their budgets.

`make lint` runs it and fails above a budget, and if a budget is higher than it needs to be: budgets only fall.
`python -m tools.rooms --lower` writes what is there today as the budgets, where that is less.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path

from tabulate import tabulate

from collbench.catalog import registry

ROOT = Path(__file__).resolve().parents[1]
BUDGETS = ROOT / "tools" / "budgets.json"
PACKAGE = ROOT / "bench" / "collbench"
PACKAGES = tuple(package.name for package in registry.PACKAGES)
# A budget may be this much higher than what is there, in lines or words, so that not each commit changes it.
SLACK = {"lines": 20, "words": 200}
PAGES = ("*.md", "docs/**/*.md", "proof/*.md")


def lines_of(files: Iterable[Path]) -> int:
    """Return the number of lines of Python files."""
    return sum(path.read_text().count("\n") for path in files)


def counts() -> dict[str, int]:
    """Return the lines of each room, of sums of rooms and of other folders, and the words of all pages."""
    folders = [folder for folder in PACKAGE.iterdir() if list(folder.glob("*.py")) and folder.name != "packages"]
    core = {folder.name: lines_of(folder.rglob("*.py")) for folder in sorted(folders) if not folder.is_symlink()}
    packages = {name: lines_of((PACKAGE / "packages" / name).rglob("*.py")) for name in PACKAGES}
    return {
        **core,
        "core": sum(core.values()),
        **packages,
        "packages": sum(packages.values()),
        "bench": lines_of(PACKAGE.rglob("*.py")),
        **{name: lines_of((ROOT / name).rglob("*.py")) for name in ("tests", "proof", "tools")},
        "words of pages": sum(len(page.read_text().split()) for pattern in PAGES for page in ROOT.glob(pattern)),
    }


def wrong(there: dict[str, int], budgets: dict[str, int]) -> list[str]:
    """Return a line for each count above its budget, and for each budget that must be lowered."""
    lines = []
    for name in {**there, **budgets}:
        count, budget = there.get(name, 0), budgets.get(name, 0)
        unit = "words" if name.startswith("words") else "lines"
        if count > budget:
            lines.append(f"{name}: {count} {unit}, the budget is {budget}: remove {count - budget} elsewhere in it")
        elif budget > count + SLACK[unit]:
            lines.append(f"{name}: {count} {unit}, the budget is {budget}: python -m tools.rooms --lower")
    return lines


def main() -> int:
    there, budgets = counts(), json.loads(BUDGETS.read_text())
    if sys.argv[1:] == ["--lower"]:
        budgets = {name: min(count, budgets.get(name, 0)) for name, count in there.items()}
        BUDGETS.write_text(json.dumps(budgets, indent=2) + "\n")
    print(tabulate([[name, there[name], budgets.get(name)] for name in there], headers=["room", "lines", "budget"]))
    problems = wrong(there, budgets)
    print("\n".join(problems), file=sys.stderr, end="\n" if problems else "")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
