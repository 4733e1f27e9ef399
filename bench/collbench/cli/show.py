"""Print blocks for people, fitted to the width of the terminal."""

import shutil
import textwrap
from collections.abc import Sequence

from collbench.cli.terminal import say, say_verdict
from collbench.report.blocks import Block
from collbench.report.screen import fitted, plain


def show(blocks: Sequence[Block], quiet: bool = False, err: bool = False) -> None:
    """Print blocks for people, not for programs. quiet: the first line of the first block, a text. err: to stderr."""
    say_verdict(plain(str(blocks[0]).partition("\n")[0]) if quiet else fitted(blocks, _columns()), err)


def show_hanging(first: str, text: str) -> None:
    """Print `first`, then `text` with a hanging indent: its further lines begin where its first line does."""
    say(textwrap.fill(first + text, _columns(), subsequent_indent=" " * len(first), break_on_hyphens=False))


def _columns() -> int:
    return shutil.get_terminal_size((80, 24)).columns
