"""Write blocks as one HTML file that needs no other file and no network, in the light or dark colours of the system.

In: blocks, and files of pictures. Out: HTML, which is rendered from the blocks' Markdown; `markdown` escapes all text.
The guide for readers, a page of the documentation, is its last part. On a phone, each row of a table that is too wide
becomes a record: its cells below each other, each next to its header.
"""

import base64
import hashlib
import html
import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from collbench.model.visible import visible
from collbench.report import markdown
from collbench.report.blocks import UNIT, Block, fold
from collbench.report.labels import NOTHING

if TYPE_CHECKING:  # most verbs write no page
    from markdown_it.token import Token

READING = Path(__file__).parents[1] / "docs" / "reading.md"
# Tables with more columns are printed in smaller letters.
WIDE = 8
# Tables of at most this width, in characters, fit a phone. GAP: the space around a cell.
PHONE, GAP = 46, 3
_SUMMARY = re.compile(r"<summary>(.*)</summary>")
_STYLE = """
:root { color-scheme: light dark; --text: #1a1a1a; --back: #fff; --line: #ddd; --strong: #666; --soft: #f4f6f8; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e4e4e4; --back: #16181b; --line: #3a3d42; --strong: #a0a0a0; --soft: #22252a; }
}
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1160px; margin: 2em auto; padding: 0 20px;
  color: var(--text); background: var(--back); overflow-wrap: anywhere; }
table { display: block; overflow-x: auto; margin: 1em 0; border-collapse: collapse; font-size: 14px;
  font-variant-numeric: tabular-nums; overflow-wrap: normal;  /* below: a shadow where more can be scrolled to */
  background: linear-gradient(to right, var(--back) 30%, transparent) 0 0 / 40px 100% no-repeat local,
    linear-gradient(to left, var(--back) 30%, transparent) 100% 0 / 40px 100% no-repeat local,
    linear-gradient(to right, var(--strong), transparent) 0 0 / 12px 100% no-repeat scroll,
    linear-gradient(to left, var(--strong), transparent) 100% 0 / 12px 100% no-repeat scroll; }
th, td { padding: .25em .7em; border-bottom: 1px solid var(--line); vertical-align: top; }
th { border-bottom: 2px solid var(--strong); vertical-align: bottom; }
td[style*="right"] { white-space: nowrap; }
td[style*="left"] { min-width: 8em; max-width: 40em; }
table.wide { font-size: 13px; } table.wide th, table.wide td { padding: .25em .35em; }
tr:hover td { background: var(--soft); }
img { width: 935px; max-width: 100%; height: auto; box-sizing: border-box;
  background: #fff; border: 1px solid var(--line); border-radius: 4px; }
@media (prefers-color-scheme: dark) { img { filter: invert(.88) hue-rotate(180deg); } }
h1 + p { color: var(--strong); margin-top: -.6em; }
h2 { margin-top: 1.6em; border-bottom: 1px solid var(--line); }
nav { columns: 16em; margin: 1em 0; padding: .6em 1em; background: var(--soft); border-radius: 4px; }
nav a { display: block; color: inherit; }
details { margin: 1em 0; } summary { cursor: pointer; font-weight: 600; font-size: 1.1em; }
details > *:not(summary) { margin-left: .4em; }
@media screen and (max-width: 900px) {
  table { font-size: 13px; } table.wide { font-size: 12px; } th, td { padding: .25em .4em; }
  td[style*="left"] { min-width: 5em; } td[style*="right"] { white-space: normal; }
}
@media screen and (max-width: 700px) {
  body { margin: 1em auto; padding: 0 14px; }
  h1 { font-size: 1.5em; } h2 { font-size: 1.25em; } ul { padding-left: 1.2em; }
  table:not(.small) { background: none; font-size: 14px; }
  table:not(.small) :is(thead, .unknown) { display: none; }
  table:not(.small) tr { display: block; padding: .4em 0; border-bottom: 1px solid var(--line); }
  table:not(.small) :is(tbody, td) { display: flow-root; }
  table:not(.small) td { padding: .1em 0 .1em 9.5em; border: 0; text-align: left !important; min-width: 0; }
  table:not(.small) td::before { content: attr(data-label); float: left; width: 9em; margin-left: -9.5em;
    color: var(--strong); font-weight: 400; white-space: normal; }
  table:not(.small) td:first-child { font-weight: 600; }
}
@media print {
  :root { --text: #000; --back: #fff; --line: #bbb; --soft: #fff; }
  @page { margin: 12mm; }
  body { max-width: none; font-size: 9px; line-height: 1.3; margin: 0; padding: 0; } nav { display: none; }
  table { display: table; background: none; margin: .5em 0; font-size: inherit; } table.wide { font-size: 7px; }
  th, td { padding: .1em .4em; } td[style*="left"] { min-width: 0; }
  img { width: 60%; }
  h2, summary { break-after: avoid; } img, tr { break-inside: avoid; }
}
"""
# Opens folded parts before printing.
_SCRIPT = """
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach(one => { one.open = true; }));
"""


def page(blocks: Sequence[Block], title: str, pictures: Mapping[str, Path]) -> str:
    """Return the blocks as HTML. pictures: address → PNG file."""
    from markdown_it import MarkdownIt  # deferred import, as above

    # The only HTML in the Markdown of blocks is that of its folded parts; the guide has none.
    markdown_it = MarkdownIt("commonmark", {"html": True}).enable("table")
    tokens = markdown_it.parse(markdown.written([*blocks, *fold("How to read this report", [_guide()])]))
    _label_cells(tokens)
    _embed(tokens, pictures)
    links = "".join(f'<a href="#part-{number}">{name}</a>' for number, name in enumerate(_mark_parts(tokens), start=1))
    contents = f"<details><summary>Contents</summary><nav>{links}</nav></details>\n"
    first = next((place for place, token in enumerate(tokens) if token.tag == "h2"), None)
    answer, rest = (
        markdown_it.renderer.render(part, markdown_it.options, {})
        for part in (tokens[:first], tokens[first or len(tokens) :])
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy()}">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>{html.escape(visible(title))}</title>\n<style>{_STYLE}</style>\n<script>{_SCRIPT}</script>\n</head>\n"
        f"<body>\n{answer}{contents if rest else ''}{rest}</body>\n</html>\n"
    )


def _mark_parts(tokens: "Sequence[Token]") -> list[str]:
    """Give each heading and folded part the mark to which the table of contents leads. Returns their names as HTML."""
    names: list[str] = []
    for token, following in itertools.pairwise(tokens):
        if token.type == "heading_open" and token.tag == "h2":
            names.append(html.escape(_text(following)))
            token.attrSet("id", f"part-{len(names)}")
        elif summary := _SUMMARY.search(token.content) if token.type == "html_block" else None:
            names.append(summary[1])
            token.content = token.content.replace("<summary>", f'<summary id="part-{len(names)}">')
    return names


def _label_cells(tokens: "Sequence[Token]") -> None:
    """Give each cell the header of its column, numbers their units, and tables the class `small` or `wide`."""
    table, headers, widths, column = tokens[0], list[str](), list[int](), 0
    for token, following in itertools.pairwise(tokens):
        match token.type:
            case "table_open":
                table, headers, widths = token, [], []
            case "tr_open":
                column = 0
            case "th_open":
                headers.append(_text(following))
                widths.append(len(headers[-1]))
            case "td_open":
                text = _text(following)
                token.attrs |= {"data-label": headers[column]} | ({"class": "unknown"} if text in {"", NOTHING} else {})
                widths[column] = max(widths[column], len(text))
                for part in following.children or ():
                    part.content = UNIT.sub("\\1\N{NO-BREAK SPACE}\\2", part.content)
                column += 1
            case "table_close" if sum(widths) + GAP * len(widths) <= PHONE:
                table.attrSet("class", "small")
            case "table_close" if len(widths) > WIDE:
                table.attrSet("class", "wide")


def _embed(tokens: "Sequence[Token]", pictures: Mapping[str, Path]) -> None:
    """Replace the addresses of pictures by their content."""
    for image in (part for token in tokens for part in token.children or () if part.type == "image"):
        content = base64.b64encode(pictures[unquote(str(image.attrs["src"]))].read_bytes()).decode()
        image.attrSet("src", f"data:image/png;base64,{content}")


def _text(inline: "Token") -> str:
    """Return the text of a heading or cell without marks."""
    return "".join(part.content for part in inline.children or ())


def _guide() -> str:
    """Return the page on how to read a report, as Markdown, without the section for programs."""
    text = READING.read_text(encoding="utf-8").split("\n", 1)[1].partition("\n## In a program\n")[0]
    # Other pages are named, not linked: the file is self-contained.
    return re.sub(r"\[[^\]]*\]\(([\w/-]+\.md)\)", r"docs/\1", text).replace("\n## ", "\n### ")


def _policy() -> str:
    """Return the policy for browsers: show the page and its pictures, run its one script, use no network."""
    script = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
    return (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{script}'; "
        "base-uri 'none'; form-action 'none'"
    )
