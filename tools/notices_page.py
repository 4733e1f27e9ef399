"""Write docs/notices.md from the tables of sentences: every kind of notice with its sentence and its remedy.

`make docs` runs it.
"""

import string
from collections.abc import Iterator
from pathlib import Path

from tabulate import tabulate

from collbench.model.notices import NoticeKind
from collbench.model.units import counted
from collbench.report import notices

PAGE = Path(__file__).resolve().parents[1] / "docs" / "notices.md"
HEAD = """\
# Notices

Reports print a notice as a sentence. For programs, each has a kind: `report --format json` has `kind`, `text`, \
`remedy`, `values` and the `cases`; JUnit has the kind in brackets; OpenMetrics counts them in `collbench_notices`; \
summary.csv has the column `notices`. So a CI job can let some kinds pass and stop at others:

```sh
collbench report --format json | jq -e 'all(.notices[].kind; . != "other-processes")'
```

`make docs` writes this page. *Names* are replaced by values. [errors.md](errors.md) lists errors.
"""


def readable(template: str) -> str:
    """Return a template with the names of its values in place of the values."""
    return "".join(text + _named(name, spec) for text, name, spec, _ in string.Formatter().parse(template))


def _named(name: str | None, spec: str | None) -> str:
    if name is None:
        return ""
    shown = f"*{name.replace('_', ' ')}*"
    match (spec or "").partition(" "):
        case "count", _, noun:
            return f"{shown} {counted(2, noun).partition(' ')[2]}"
        case "after", _, rest:
            return f"[{rest.partition('|')[0]}{shown}]"
    return shown


def sets() -> Iterator[tuple[type[NoticeKind], list[NoticeKind]]]:
    """Yield the sets of kinds, each with its kinds."""
    kinds = list(notices.table())
    for each in dict.fromkeys(type(kind) for kind in kinds):
        yield each, [kind for kind in kinds if type(kind) is each]


def page() -> str:
    """Return the whole page."""
    parts = [HEAD]
    for each, kinds in sets():
        rows = [
            (f"`{kind}`", readable(notices.table()[kind].text), readable(notices.table()[kind].remedy))
            for kind in kinds
        ]
        title = (each.__doc__ or "").strip().splitlines()[0].removesuffix(".")
        parts.append(f"## {title}\n\n{tabulate(rows, ['kind', 'sentence', 'remedy'], tablefmt='github')}\n")
    return "\n".join(parts)


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
