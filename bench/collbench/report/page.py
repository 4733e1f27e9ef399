"""Write blocks as one HTML file that needs no other file and no network, in the light or dark colours of the system.

In: blocks, and files of pictures. Out: HTML, which is rendered from the blocks' Markdown; `markdown` escapes all text.
The guide for readers, a page of the documentation, is its last part.
"""

import base64
import hashlib
import html
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote

from collbench.model.visible import visible
from collbench.report import markdown
from collbench.report.blocks import Block, fold

READING = Path(__file__).parents[1] / "docs" / "reading.md"
# Tables with more columns are printed in smaller letters.
WIDE = 8
# A table or picture that is wider than the page scrolls in a box of its own.
BOX = '<div class="box">{}</div>'
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
    from markdown_it import MarkdownIt  # deferred import: most verbs write no page

    # The only HTML in the Markdown of blocks is that of its folded parts; the guide has none.
    markdown_it = MarkdownIt("commonmark", {"html": True}).enable("table")
    body = markdown_it.render(markdown.written([*blocks, *fold("How to read this report", [_guide()])]))
    names: list[str] = []

    def listed(match: re.Match[str]) -> str:
        """Add a heading to the table of contents; return it with the mark to which its entry leads."""
        names.append(match[2])
        return f'<{match[1]} id="part-{len(names)}">{match[2]}</{match[1]}>'

    def embedded(match: re.Match[str]) -> str:
        content = base64.b64encode(pictures[unquote(match[1])].read_bytes()).decode()
        return BOX.format(f'<img src="data:image/png;base64,{content}"{match[2]}>')

    def in_box(match: re.Match[str]) -> str:
        attribute = ' class="wide"' if match[0].partition("</thead>")[0].count("<th ") > WIDE else ""
        return BOX.format(f"<table{attribute}>{match[1]}</table>")

    body = re.sub(r"<(h2|summary)>(.*?)</\1>", listed, body)
    body = re.sub(r'<p><img src="([^"]*)"([^>]*?) /></p>', embedded, body)
    body = re.sub(r"<table>(.*?)</table>", in_box, body, flags=re.DOTALL)
    links = "".join(f'<a href="#part-{number}">{name}</a>' for number, name in enumerate(names, start=1))
    contents = f"<details><summary>Contents</summary><nav>{links}</nav></details>\n" if len(names) > 1 else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy()}">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>{html.escape(visible(title))}</title>\n<style>{_STYLE}</style>\n<script>{_SCRIPT}</script>\n</head>\n"
        f"<body>\n{body.replace('<h2', f'{contents}<h2', 1)}</body>\n</html>\n"
    )


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
