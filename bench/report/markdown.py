"""Markdown: tables and lists, which every text of a report is made of, and its rendering as one HTML file.

In: rows and items that are text already; a report and files of pictures. Out: Markdown; HTML that needs no other file
and no network, in the colours that the reader's system has. What stands in a report is text: only the marks of folded
parts become HTML. Loads no pandas and no renderer until a page is made, so that verbs which only list things answer
quickly. `screen` fits the same Markdown to a terminal.
"""

import base64
import html
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tabulate import tabulate

# A part that a reader opens, as GitHub shows it; each mark is a line of its own.
OPENED, CLOSED = "<details><summary>{}</summary>", "</details>"
READING = Path(__file__).parent / "reading.md"
# Larger SVG files, of pictures with a mark for each sample, make the page slow; their PNG is taken.
MOST_SVG_BYTES = 300_000
# Tables with more columns are printed in smaller letters.
WIDE = 8
# What the contents list: headings, and the lines that open folded parts.
_HEADING = re.compile(r"<(h2|summary)>(.*?)</\1>", re.DOTALL)
_STYLE = """
:root { color-scheme: light dark; --text: #1a1a1a; --back: #fff; --line: #ddd; --strong: #888; --soft: #f4f6f8; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e4e4e4; --back: #16181b; --line: #3a3d42; --strong: #777; --soft: #22252a; }
}
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1160px; margin: 2em auto; padding: 0 20px;
  color: var(--text); background: var(--back); }
table { border-collapse: collapse; margin: 1em 0; font-variant-numeric: tabular-nums; }
th, td { padding: .25em .7em; border-bottom: 1px solid var(--line); vertical-align: top; }
td { overflow-wrap: anywhere; }
th { border-bottom: 2px solid var(--strong); vertical-align: bottom; }
table.wide { font-size: 11px; } table.wide th, table.wide td { padding: .25em .35em; }
tr:hover td { background: var(--soft); }
img { max-width: 100%; background: #fff; border: 1px solid var(--line); border-radius: 4px; margin: .5em 0; }
h2 { margin-top: 1.6em; border-bottom: 1px solid var(--line); }
nav { columns: 3; margin: 1em 0; padding: .6em 1em; background: var(--soft); border-radius: 4px; }
nav a { display: block; color: inherit; }
details { margin: 1em 0; } summary { cursor: pointer; font-weight: 600; font-size: 1.1em; }
details > *:not(summary) { margin-left: .4em; }
@media print {
  :root { --text: #000; --back: #fff; --line: #bbb; --soft: #fff; }
  body { max-width: none; font-size: 10px; margin: 0; } table.wide { font-size: 7px; } nav { display: none; }
  h2, summary { break-after: avoid; } img, tr { break-inside: avoid; }
}
"""
# What is folded would not be printed.
_SCRIPT = """
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach(one => { one.open = true; }));
"""


def table(rows: Sequence[Sequence[str]], headers: Sequence[str], align: Sequence[str] | None = None) -> str:
    """A table, its columns to the right unless `align` says so. Cells are text: no number is rounded again."""
    return tabulate(rows, headers, tablefmt="pipe", disable_numparse=True, colalign=align or ["right"] * len(headers))


def lines(items: Iterable[str]) -> str:
    """A list."""
    return "\n".join(f"- {item}" for item in items)


def folded(summary: str, parts: Sequence[str]) -> list[str]:
    """Parts below a line that opens them; nothing if there are no parts."""
    return [OPENED.format(summary), *parts, CLOSED] if parts else []


# ── HTML ─────────────────────────────────────────────────────────────────────────────────────────
def page(report: str, title: str, pictures: Mapping[str, Path]) -> str:
    """The report as HTML. pictures: address in the report → file (PNG); an SVG beside it is taken if it is small."""
    reading = READING.read_text(encoding="utf-8").split("\n", 1)[1].replace("[method.md](method.md)", "docs/method.md")
    reading = reading.replace("\n## ", "\n### ")
    body = _rendered(f"{report}\n\n{OPENED.format('How to read this report')}\n\n{reading}\n\n{CLOSED}\n")
    for address, file in pictures.items():
        body = body.replace(f'src="{html.escape(address)}"', f'src="{_data(file)}"')
    body, contents = _with_contents(body)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}</style>\n<script>{_SCRIPT}</script>\n</head>\n"
        f"<body>\n{body.replace('</h1>', f'</h1>{contents}', 1)}</body>\n</html>\n"
    )


def _rendered(text: str) -> str:
    """Markdown as HTML. The marks of folded parts stand in lines of their own; tables with many columns are marked."""
    from markdown_it import MarkdownIt  # here: only this page needs a renderer

    renderer = MarkdownIt("commonmark", {"html": False}).enable("table")
    before, behind = (re.escape(part) for part in OPENED.split("{}"))
    parts = []
    for part in re.split(rf"^({before}[^<\n]*{behind}|{re.escape(CLOSED)})$", text, flags=re.MULTILINE):
        is_mark = part == CLOSED or part.startswith(OPENED.partition("{}")[0])
        parts.append(part if is_mark else str(renderer.render(part)))

    def marked(match: re.Match[str]) -> str:
        return match[0].replace("<table>", '<table class="wide">', 1) if match[1].count("<th") > WIDE else match[0]

    return re.sub(r"<table>(.*?)</table>", marked, "\n".join(parts), flags=re.DOTALL)


def _with_contents(body: str) -> tuple[str, str]:
    """The page with an anchor at each heading, and the list of them."""
    names: list[str] = []

    def anchored(match: re.Match[str]) -> str:
        tag, name = match.groups()
        names.append(name)
        return f'<{tag} id="part-{len(names)}">{name}</{tag}>'

    body = _HEADING.sub(anchored, body)
    links = "".join(f'<a href="#part-{number}">{name}</a>' for number, name in enumerate(names, start=1))
    return body, f"<nav>{links}</nav>" if len(names) > 1 else ""


def _data(file: Path) -> str:
    vector = file.with_suffix(".svg")
    chosen = vector if vector.is_file() and vector.stat().st_size <= MOST_SVG_BYTES else file
    kind = "svg+xml" if chosen is vector else "png"
    return f"data:image/{kind};base64,{base64.b64encode(chosen.read_bytes()).decode()}"
