"""Write blocks as Markdown, for files that others open.

In: blocks. Out: Markdown without active content, apart from the blocks' own pictures and folded parts. Other text that
looks like a link or HTML is escaped, such as a host that is named `<img src=…>`. Code is left as it is.
"""

import re
from collections.abc import Sequence

from tabulate import tabulate

from collbench.model.visible import visible
from collbench.report.blocks import Block, Code, Fold, Heading, Items, Picture, Table

# Beginning and end of a folded part, as GitHub shows it.
OPENED, CLOSED = "<details><summary>{}</summary>", "</details>"
# Characters that begin HTML, an image, a link or its address, which viewers may load. As entities, they are plain text.
_ACTIVE = re.compile(r"<|(?<=!)\[|(?<=\])[(:\[]|(?<=:)/(?=/)|(?<=www)\.")
# A bar that ends a cell of a table.
_BAR = re.compile(r"(?<!\\)\|")


def written(blocks: Sequence[Block]) -> str:
    """Return the text of a file with these blocks."""
    return "\n\n".join(map(_written, blocks)) + "\n"


def _written(block: Block) -> str:
    match block:
        case Heading():
            return f"{'#' * block.level} {_safe(block.text)}"
        case Items():
            return "\n".join(f"- {_safe(text)}" for text in block.texts)
        case Table():
            cells = [[_BAR.sub(r"\|", _safe(cell)) for cell in row] for row in (block.headers, *block.rows)]
            return tabulate(cells[1:], cells[0], tablefmt="pipe", disable_numparse=True, colalign=block.aligned)
        case Picture():
            return f"![{_safe(block.title)}]({block.address})"
        case Code():
            return f"```{block.language}\n{visible(block.text)}\n```"
        case Fold():
            return "\n\n".join([OPENED.format(_safe(block.summary)), *map(_written, block.blocks), CLOSED])
        case str():
            return _safe(block)


def _safe(text: str) -> str:
    return _ACTIVE.sub(lambda match: f"&#{ord(match[0])};", visible(text))
