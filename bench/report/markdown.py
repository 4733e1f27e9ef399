"""Markdown: tables and lists, which every text of a report is made of, and its rendering as one HTML file.

In: rows and items that are text already; a report and files of pictures. Out: Markdown; HTML that needs no other file
and no network, in the colours that the reader's system has. What stands in a report is text: only the marks of folded
parts and the run's own pictures become HTML. Loads no pandas and no renderer until a page is made, so that verbs which
only list things answer quickly. `fitted` fits the same Markdown to a terminal.
"""

import base64
import hashlib
import html
import io
import itertools
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text
from tabulate import tabulate

from bench.model.visible import visible

# A part that a reader opens, as GitHub shows it; each mark is a line of its own.
OPENED, CLOSED = "<details><summary>{}</summary>", "</details>"
READING = Path(__file__).parent / "reading.md"
# Larger SVG files, of pictures with a mark for each sample, make the page slow; their PNG is taken.
MOST_SVG_BYTES = 300_000
# Tables with more columns are printed in smaller letters.
WIDE = 8
# A table or picture that is wider than the page scrolls in a box of its own.
BOX = '<div class="box">{}</div>'
# What the contents list: headings, and the lines that open folded parts.
_HEADING = re.compile(r"<(h2|summary)>(.*?)</\1>", re.DOTALL)
# A bar that ends a cell of a table; a line that is a mark of a folded part, or a picture: its title and address.
_BAR = re.compile(r"(?<!\\)\|")
_FOLD = re.compile(rf"{re.escape(OPENED).replace(re.escape('{}'), '[^<]*')}|{re.escape(CLOSED)}")
_IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)]*)\)")
# What begins HTML, an image, a link or its address, which some viewers load or open. As entities they are mere text.
_ACTIVE = re.compile(r"<|(?<=!)\[|(?<=\])[(:\[]|(?<=:)/(?=/)|(?<=www)\.")
_STYLE = """
:root { color-scheme: light dark; --text: #1a1a1a; --back: #fff; --line: #ddd; --strong: #888; --soft: #f4f6f8; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e4e4e4; --back: #16181b; --line: #3a3d42; --strong: #777; --soft: #22252a; }
}
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1160px; margin: 2em auto; padding: 0 20px;
  color: var(--text); background: var(--back); overflow-wrap: anywhere; }
.box { overflow-x: auto; margin: 1em 0; }
table { border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
th, td { padding: .25em .7em; border-bottom: 1px solid var(--line); vertical-align: top; }
th { border-bottom: 2px solid var(--strong); vertical-align: bottom; }
td[style*="right"] { white-space: nowrap; }
td[style*="left"] { min-width: 8em; max-width: 40em; }
table.wide { font-size: 11px; } table.wide th, table.wide td { padding: .25em .35em; }
tr:hover td { background: var(--soft); }
img { max-width: 100%; min-width: 600px; background: #fff; border: 1px solid var(--line); border-radius: 4px; }
h2 { margin-top: 1.6em; border-bottom: 1px solid var(--line); }
nav { columns: 16em; margin: 1em 0; padding: .6em 1em; background: var(--soft); border-radius: 4px; }
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

# Spaces between two columns.
GAP = 2
RULE = "─"
TABLE, CODE, PROSE = "table", "code", "prose"
# Stands for a space while lines are broken; rich breaks at every character that Unicode calls a space.
NO_BREAK = "\ue000"
_MARK = re.compile(r"^(\s*)([-*] |\d+\. )?")
# A number and its unit, which stay in one line.
_UNIT = re.compile(r"(\d) ([nµm]?s|min|h|[KMGT]?i?B|GB/s)\b")


def table(rows: Sequence[Sequence[str]], headers: Sequence[str], align: str = "") -> str:
    """A table; empty without rows. align: l or r for each column; all are r if empty. Cells are text already."""
    if not rows:
        return ""
    words = [{"l": "left", "r": "right"}[letter] for letter in align or "r" * len(headers)]
    cells, heads = [list(map(cell, row)) for row in rows], list(map(cell, headers))
    return tabulate(cells, heads, tablefmt="pipe", disable_numparse=True, colalign=words)


def cell(text: str) -> str:
    """A text on one line, without what ends a cell of a table."""
    return _BAR.sub(r"\|", in_line(text))


def in_line(text: str) -> str:
    """A text on one line: in a list or a heading, nothing that it quotes begins a line of its own."""
    return " ".join(text.split("\n"))


def lines(items: Iterable[str]) -> str:
    """A list."""
    return "\n".join(f"- {in_line(item)}" for item in items)


def folded(summary: str, parts: Sequence[str]) -> list[str]:
    """Parts below a line that opens them; nothing if there are no parts."""
    return [OPENED.format(summary), *parts, CLOSED] if parts else []


def safe(text: str, pictures: Iterable[str] = ()) -> str:
    """A document as text and pictures, to be written into a file that others open: nothing in it runs, loads or links.

    Reports have no HTML, links and images but folded parts and these pictures, so what looks like one is quoted from
    elsewhere, such as a host that is named `<img src=…>`. pictures: their addresses. Code is left as it is.
    """
    ours = dict.fromkeys(pictures, True)
    written = []
    for kind, line in _with_kinds(visible(text)):
        image = _IMAGE.fullmatch(line)
        kept = kind == CODE or _FOLD.fullmatch(line) or (image and image[2] in ours)
        written.append(line if kept else _ACTIVE.sub(lambda match: f"&#{ord(match[0])};", line))
    return "\n".join(written)


# ── HTML ─────────────────────────────────────────────────────────────────────────────────────────
def page(report: str, title: str, pictures: Mapping[str, Path]) -> str:
    """The report as HTML. pictures: address in the report → file (PNG); an SVG beside it is taken if it is small."""
    # What is behind that heading is for programs, not for who reads a report.
    reading = READING.read_text(encoding="utf-8").split("\n", 1)[1].partition("\n## In a program\n")[0]
    reading = reading.replace("[method.md](method.md)", "docs/method.md")
    reading = reading.replace("\n## ", "\n### ")
    whole = f"{report}\n\n{OPENED.format('How to read this report')}\n\n{reading}\n\n{CLOSED}\n"
    body, contents = _with_contents(_rendered(whole, pictures))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy()}">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}</style>\n<script>{_SCRIPT}</script>\n</head>\n"
        f"<body>\n{body.replace('</h1>', f'</h1>{contents}', 1)}</body>\n</html>\n"
    )


def _policy() -> str:
    """What a browser may do with the page: show it, with the pictures in it, and run its one script. No network."""
    script = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
    return (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{script}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _rendered(text: str, pictures: Mapping[str, Path]) -> str:
    """Markdown as HTML, with a box around each table and picture. Pictures and marks of folded parts are whole lines.

    Besides these pictures there are no images, and no links.
    """
    from markdown_it import MarkdownIt  # here: only this page needs a renderer

    renderer = MarkdownIt("commonmark", {"html": False}).enable("table")
    renderer.disable(["image", "link", "autolink", "reference", "html_block", "html_inline"])
    parts, between = [], list[str]()
    for line in [*text.split("\n"), CLOSED]:
        image = _IMAGE.fullmatch(line)
        if not _FOLD.fullmatch(line) and not (image and image[2] in pictures):
            between.append(line)
            continue
        parts.append(str(renderer.render("\n".join(between))))
        between.clear()
        if image:
            line = BOX.format(f'<img src="{_data(pictures[image[2]])}" alt="{html.escape(image[1])}">')
        parts.append(line)
    parts.pop()  # the mark that was added

    def boxed(match: re.Match[str]) -> str:
        look = ' class="wide"' if match[1].count("<th") > WIDE else ""
        return BOX.format(f"<table{look}>{match[1]}</table>")

    return re.sub(r"<table>(.*?)</table>", boxed, "\n".join(parts), flags=re.DOTALL)


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


# ── the terminal ─────────────────────────────────────────────────────────────────────────────────
def fitted(text: str, width: int) -> str:
    """The text with tables and sentences of at most `width` columns."""
    fitting: list[str] = []
    for kind, group in itertools.groupby(_with_kinds(text), key=lambda pair: pair[0]):
        lines = [line for _, line in group]
        if kind == TABLE:
            fitting += _table(lines, width)
        else:
            fitting += lines if kind == CODE else [part for line in lines for part in _sentence(line, width)]
    return "\n".join(fitting)


def _with_kinds(text: str) -> Iterator[tuple[str, str]]:
    """Each line, with what it is part of."""
    in_code = False
    for line in text.split("\n"):
        fence = line.startswith("```")
        yield CODE if in_code or fence else TABLE if line.startswith("|") else PROSE, line
        in_code ^= fence


def plain(text: str) -> str:
    """The text without marks of emphasis."""
    return text.replace("**", "")


def _sentence(line: str, width: int) -> list[str]:
    """A line, wrapped; what follows an item of a list is indented with it."""
    line = plain(line)
    if len(line) <= width:
        return [line]
    mark = _MARK.match(line)
    indent = " " * (len(mark[0]) if mark else 0)
    wrapper = textwrap.TextWrapper(width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return wrapper.wrap(line) or [line]


def _table(lines: Sequence[str], width: int) -> list[str]:
    cells = [
        [_UNIT.sub(rf"\1{NO_BREAK}\2", cell.strip()) for cell in _split(line)] for line in lines if not _is_rule(line)
    ]
    right = [mark.endswith(":") for line in lines if _is_rule(line) for mark in _split(line)]
    headers, *rows = cells
    columns = list(zip(*cells, strict=False))
    longest_words = [max(cell_len(word) for cell in column for word in cell.split(" ")) for column in columns]
    widths = _narrowed([max(map(cell_len, column)) for column in columns], longest_words, width)
    if widths is None:
        return [line.replace(NO_BREAK, " ") for line in _records(headers, rows, width)]
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))
    table.show_header = any(headers)
    for header, column_width, is_right in zip(headers, widths, right, strict=False):
        table.add_column(Text(header), width=column_width, justify="right" if is_right else "left")
    for row in rows:
        table.add_row(*map(Text, row))
    out = io.StringIO()
    # Wider than asked: rich must not narrow the columns again.
    Console(file=out, width=2 * width, color_system=None).print(table)
    drawn = [line.replace(NO_BREAK, " ").rstrip() for line in out.getvalue().rstrip("\n").split("\n")]
    # rich draws the rule below the headers as far as the padding goes.
    return [line[:-1] if set(line) == {RULE} else line for line in drawn]


def _split(line: str) -> list[str]:
    cells = _BAR.split(line.strip().removeprefix("|").removesuffix("|"))
    return [cell.replace("\\|", "|") for cell in cells]


def _is_rule(line: str) -> bool:
    """Whether it is the line below the headers, which says how columns are aligned."""
    return not line.strip("|:- ")


def _narrowed(widths: list[int], least: Sequence[int], width: int) -> list[int] | None:
    """Widths of columns that fit: the widest are narrowed first, down to their longest word. None if that fails."""
    available = width - GAP * (len(widths) - 1)
    while sum(widths) > available:
        wide = [number for number, column_width in enumerate(widths) if column_width > least[number]]
        if not wide:
            return None
        widths[max(wide, key=lambda number: widths[number])] -= 1
    return widths


def _records(headers: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """Each row by itself: its first cell, and the others with their headers below it."""
    for row in rows:
        yield from _sentence(row[0], width)
        for header, cell in zip(headers[1:], row[1:], strict=False):
            if cell:
                yield from _sentence(f"    {header}: {cell}", width)
