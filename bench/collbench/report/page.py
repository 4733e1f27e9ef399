"""Write blocks as one HTML file that needs no other file and no network, in the light or dark colours of the system.

In: blocks, and files of pictures. Out: HTML. All text is escaped; the guide for readers, a page of the documentation,
is the only Markdown that is rendered, and its renderer is loaded only for it.
"""

import base64
import hashlib
import html
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from collbench.model.visible import visible
from collbench.report.blocks import Align, Block, Code, Fold, Heading, Items, Picture, Table

READING = Path(__file__).parents[1] / "docs" / "reading.md"
# Tables with more columns are printed in smaller letters.
WIDE = 8
# A table or picture that is wider than the page scrolls in a box of its own.
BOX = '<div class="box">{}</div>'
# Marks in texts for bold text and for code.
_STRONG, _CODE = re.compile(r"\*\*(.+?)\*\*", re.DOTALL), re.compile("`([^`]+)`")
_STYLE = """
:root { color-scheme: light dark; --text: #1a1a1a; --back: #fff; --line: #ddd; --strong: #666; --soft: #f4f6f8; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e4e4e4; --back: #16181b; --line: #3a3d42; --strong: #a0a0a0; --soft: #22252a; }
}
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1160px; margin: 2em auto; padding: 0 20px;
  color: var(--text); background: var(--back); overflow-wrap: anywhere; }
.box { overflow-x: auto; margin: 1em 0;  /* a shadow where more can be scrolled to */
  background: linear-gradient(to right, var(--back) 30%, transparent) 0 0 / 40px 100% no-repeat local,
    linear-gradient(to left, var(--back) 30%, transparent) 100% 0 / 40px 100% no-repeat local,
    linear-gradient(to right, var(--strong), transparent) 0 0 / 12px 100% no-repeat scroll,
    linear-gradient(to left, var(--strong), transparent) 100% 0 / 12px 100% no-repeat scroll; }
table { border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
th, td { padding: .25em .7em; border-bottom: 1px solid var(--line); vertical-align: top; }
th { border-bottom: 2px solid var(--strong); vertical-align: bottom; }
td[style*="right"] { white-space: nowrap; }
td[style*="left"] { min-width: 8em; max-width: 40em; }
table.wide { font-size: 13px; } table.wide th, table.wide td { padding: .25em .35em; }
tr:hover td { background: var(--soft); }
img { width: 935px; max-width: 100%; min-width: 600px; height: auto; box-sizing: border-box;
  background: #fff; border: 1px solid var(--line); border-radius: 4px; }
@media (prefers-color-scheme: dark) { img { filter: invert(.88) hue-rotate(180deg); } }
h1 + p { color: var(--strong); margin-top: -.6em; }
h2 { margin-top: 1.6em; border-bottom: 1px solid var(--line); }
nav { columns: 16em; margin: 1em 0; padding: .6em 1em; background: var(--soft); border-radius: 4px; }
nav a { display: block; color: inherit; }
details { margin: 1em 0; } summary { cursor: pointer; font-weight: 600; font-size: 1.1em; }
details > *:not(summary) { margin-left: .4em; }
@media print {
  :root { --text: #000; --back: #fff; --line: #bbb; --soft: #fff; }
  @page { margin: 12mm; }
  body { max-width: none; font-size: 9px; line-height: 1.3; margin: 0; padding: 0; } nav { display: none; }
  table { font-size: inherit; } table.wide { font-size: 7px; } th, td { padding: .1em .4em; }
  .box { overflow: visible; background: none; margin: .5em 0; }
  td[style*="left"] { min-width: 0; }
  img { width: 60%; min-width: 0; }
  h2, summary { break-after: avoid; } img, tr { break-inside: avoid; }
}
"""
# Opens folded parts before printing.
_SCRIPT = """
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach(one => { one.open = true; }));
"""


def page(blocks: Sequence[Block], title: str, pictures: Mapping[str, Path]) -> str:
    """Return the blocks as HTML. pictures: address → PNG file."""
    names: list[str] = []
    parts = [_html(block, names, pictures) for block in blocks]
    names.append("How to read this report")
    parts.append(f'<details><summary id="part-{len(names)}">{names[-1]}</summary>\n{_guide()}</details>')
    links = "".join(f'<a href="#part-{number}">{name}</a>' for number, name in enumerate(names, start=1))
    contents = f"<details><summary>Contents</summary><nav>{links}</nav></details>\n" if len(names) > 1 else ""
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy()}">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>{html.escape(visible(title))}</title>\n<style>{_STYLE}</style>\n<script>{_SCRIPT}</script>\n</head>\n"
        f"<body>\n{body.replace('<h2', f'{contents}<h2', 1)}\n</body>\n</html>\n"
    )


def _html(block: Block, names: list[str], pictures: Mapping[str, Path]) -> str:
    """Return one block as HTML. names: entries of the table of contents, to which the block's entries are added."""
    match block:
        case Heading(text, level):
            if level != 2:
                return f"<h{level}>{_marked(text)}</h{level}>"
            names.append(_marked(text))
            return f'<h2 id="part-{len(names)}">{names[-1]}</h2>'
        case Items(texts):
            return "<ul>\n" + "".join(f"<li>{_marked(text)}</li>\n" for text in texts) + "</ul>"
        case Table():
            attribute = ' class="wide"' if len(block.headers) > WIDE else ""
            head = _row("th", block.headers, block.aligned)
            rows = "".join(_row("td", row, block.aligned) for row in block.rows)
            return BOX.format(f"<table{attribute}>\n<thead>\n{head}</thead>\n<tbody>\n{rows}</tbody>\n</table>")
        case Picture(title, address):
            if address not in pictures:
                return f"<p>{_marked(title)}</p>"
            content = base64.b64encode(pictures[address].read_bytes()).decode()
            return BOX.format(f'<img src="data:image/png;base64,{content}" alt="{html.escape(title)}">')
        case Code(text):
            return f"<pre><code>{html.escape(visible(text))}\n</code></pre>"
        case Fold(summary, inner):
            names.append(_marked(summary))
            opened = f'<summary id="part-{len(names)}">{names[-1]}</summary>'
            return "\n".join(["<details>" + opened, *(_html(part, names, pictures) for part in inner), "</details>"])
        case str():
            return f"<p>{_marked(block)}</p>"


def _row(tag: str, cells: Sequence[str], aligned: Sequence[Align]) -> str:
    written = (
        f'<{tag} style="text-align:{align}">{_marked(cell)}</{tag}>\n'
        for cell, align in zip(cells, aligned, strict=True)
    )
    return f"<tr>\n{''.join(written)}</tr>\n"


def _marked(text: str) -> str:
    """Return a text as HTML, with tags for its marks."""
    return _CODE.sub(r"<code>\1</code>", _STRONG.sub(r"<strong>\1</strong>", html.escape(visible(text))))


def _guide() -> str:
    """Return the page on how to read a report, without the section for programs."""
    from markdown_it import MarkdownIt  # deferred import: only this page needs a renderer

    text = READING.read_text(encoding="utf-8").split("\n", 1)[1].partition("\n## In a program\n")[0]
    # Other pages are named, not linked: the file is self-contained.
    text = re.sub(r"\[[^\]]*\]\(([\w/-]+\.md)\)", r"docs/\1", text).replace("\n## ", "\n### ")
    rendered = str(MarkdownIt("commonmark", {"html": False}).enable("table").render(text))
    return rendered.replace("<table>", BOX.partition("{}")[0] + "<table>").replace(
        "</table>", "</table>" + BOX.partition("{}")[2]
    )


def _policy() -> str:
    """Return the policy for browsers: show the page and its pictures, run its one script, use no network."""
    script = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
    return (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{script}'; "
        "base-uri 'none'; form-action 'none'"
    )
