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
STYLE = Path(__file__).with_name("page.css")
# Tables with more columns are printed in smaller letters.
WIDE = 8
# Tables of at most this width, in characters, fit a phone. GAP: the space around a cell.
PHONE, GAP = 46, 3
_SUMMARY = re.compile(r"<summary>(.*)</summary>")
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
    for image in (part for token in tokens for part in token.children or () if part.type == "image"):
        content = base64.b64encode(pictures[unquote(str(image.attrs["src"]))].read_bytes()).decode()
        image.attrSet("src", f"data:image/png;base64,{content}")
    links = "".join(f'<a href="#part-{number}">{name}</a>' for number, name in enumerate(_mark_parts(tokens), start=1))
    contents = f"<details><summary>Contents</summary><nav>{links}</nav></details>\n"
    first = next((place for place, token in enumerate(tokens) if token.tag == "h2"), None)
    answer, rest = (
        markdown_it.renderer.render(part, markdown_it.options, {})
        for part in (tokens[:first], tokens[first or len(tokens) :])
    )
    # Browsers may show the page and its pictures, and run its one script, without network.
    script = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        f"style-src 'unsafe-inline'; script-src 'sha256-{script}'; base-uri 'none'; form-action 'none'\">\n"
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>{html.escape(visible(title))}</title>\n<style>{STYLE.read_text(encoding='utf-8')}</style>\n"
        f"<script>{_SCRIPT}</script>\n</head>\n"
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


def _text(inline: "Token") -> str:
    """Return the text of a heading or cell without marks."""
    return "".join(part.content for part in inline.children or ())


def _guide() -> str:
    """Return the page on how to read a report, as Markdown, without the section for programs."""
    text = READING.read_text(encoding="utf-8").split("\n", 1)[1].partition("\n## In a program\n")[0]
    # Other pages are named, not linked: the file is self-contained.
    return re.sub(r"\[[^\]]*\]\(([\w/-]+\.md)\)", r"docs/\1", text).replace("\n## ", "\n### ")
