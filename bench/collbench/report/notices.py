"""Write notices: the sentence and the remedy of a kind, with the values of the notice.

In: notices, which have kinds and values. Out: text, which JSON contains too. Decides nothing.
"""

import string
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from collbench.catalog.collectives import PLACES
from collbench.catalog.metrics import METRICS
from collbench.model.errors import StoreError
from collbench.model.notices import Notice
from collbench.model.units import counted, format_bytes, format_rate, format_rounded_bytes, format_seconds, format_share


class _Values(string.Formatter):
    """Formats of values: `FORMATS`, `count NOUN`, one for values that may be absent, and Python's formats.

    `after TEXT|FORMAT` is TEXT and the value in this format; nothing if the value is None, 0 or empty.
    """

    def format_field(self, value: Any, spec: str) -> str:
        word, _, rest = spec.partition(" ")
        if word == "after":
            text, _, inner = rest.partition("|")
            return "" if value in (None, (), 0) else text + self.format_field(value, inner)
        if word == "count":
            return counted(value, rest)
        if spec in FORMATS:
            return FORMATS[spec](value)
        if isinstance(value, tuple):
            return ", ".join(sentence(part) if isinstance(part, Notice) else str(part) for part in value)
        return str(super().format_field(value, spec))


def _here(launches: int) -> str:
    return "in this launch" if launches == 1 else f"in these {launches} launches"


def _first_of(reasons: Iterable[Notice]) -> str:
    """Return the first sentence, and the number of other reasons."""
    first, *more = dict.fromkeys(map(sentence, reasons))
    return f"{first} (and {counted(len(more), 'other reason')}: see plan)" if more else first


FORMATS: Mapping[str, Callable[[Any], str]] = {
    "bytes": format_bytes,
    "rounded bytes": format_rounded_bytes,
    "rate": format_rate,
    "seconds": format_seconds,
    "share": format_share,
    "fine share": lambda share: format_share(share, 1),
    "exact share": lambda share: f"{100 * share:g} %",
    "here": lambda launches: f" {_here(launches)}" if launches else "",
    "here of": lambda launches: f"; {_here(launches)}" if launches else "",
    "link": lambda ends: "–".join(map(str, ends)),
    "times": lambda calls: "twice" if calls == 2 else f"{calls} times",
    "seconds each": lambda times_s: " and ".join(map(format_seconds, times_s)),
    "sum of bytes": lambda sizes: " + ".join(map(format_rounded_bytes, sizes)),
    "apart": lambda stride: f"{stride} apart",
    "place": lambda place: PLACES[place],
    "placed by copy": lambda place: f"{PLACES[place]} with a copy",
    "what is timed": lambda metric: METRICS[metric].about,
    "first of": _first_of,
    "of calls": lambda count: f" ({count} calls)" if count else "",
    "more sizes": lambda count: f" (and for {count} more of its sizes)" if count else "",
    "and": lambda values: " and ".join(map(str, values)),
    "lines": lambda values: "; ".join(map(str, values)),
}


def meaning(notice: Notice) -> str:
    """Return the sentence of a notice without its remedy, after its host and run."""
    about = [f"host {notice.host}"] * (notice.host is not None) + [notice.run] * (notice.run is not None)
    return ": ".join([*map(str, about), _filled(notice.kind.text, notice)])


def remedy(notice: Notice) -> str:
    """Return what a user can do about a notice; empty if nothing can be done."""
    return _filled(notice.kind.remedy, notice)


def _filled(text: str, notice: Notice) -> str:
    """Insert the values into the text. Raises StoreError if they do not fit, as in a file that was changed."""
    try:
        return _Values().vformat(text, (), notice.values)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        values = ", ".join(notice.values) or "none"
        raise StoreError(f"a notice {notice.kind} does not have the values of its sentence: {values}") from error


def sentence(notice: Notice) -> str:
    """Return a notice with its remedy, on one line."""
    return "; ".join(filter(None, [meaning(notice), remedy(notice)]))


def sentences(notices: Iterable[Notice]) -> list[str]:
    """Return the sentences of several notices."""
    return [sentence(notice) for notice in notices]
