"""Read tables of step times as people write them: a strategy a row, in Markdown, CSV or TSV, in their own words.

In: text. Out: `Rows` in the format of docs/training-audit.md, one number a row, and the names of the columns that were
not understood. Columns are found by the words in their headings, units by headings and cells. Judges nothing.
"""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

TABLE = "ddp_step"
# Words in a heading → the column that it is; the first that fits. Headings are in lower case, without their unit.
HEADINGS = (
    ("table", r"^table$"),
    (
        "",
        r"warm ?up|benchmark steps|^steps$|low$|high$|interval|^place$|^hidden$|^calls|resolved|adds up|^rounds$"
        r"|refused|^(tail|pack|interference|residual|late|gather|update)$|^scenario$|^link|^accumulate$|^threads$|^optimizer$"
        r"|^dtype$|^note|frac.*(std|low|high)",
    ),
    ("source", r"^source$"),
    ("hardware", r"hardware|device|machine|^gpu$|gpu type|gpu model"),
    ("backend", r"backend"),
    ("world_size", r"world size|ranks|processes|^n? ?gpus$|(number|num|#) ?(of)? gpus|workers"),
    ("seq_len", r"seq|context"),
    ("global_batch", r"batch"),
    ("bucket_bytes", r"bucket bytes"),
    ("bucket_mb", r"bucket"),
    ("comm_frac", r"(comm\w*|sync\w*) (frac\w*|share|ratio|percent\w*|overhead|%)|(frac\w*|share|percent\w*|%) .*comm"),
    ("comm_time_std", r"(comm|sync|all ?reduce).*(std|dev|σ)|(std|dev|σ).*comm"),
    ("comm_time", r"comm|sync|all ?reduce"),
    ("step_time_std", r"(step|iter|time).*(std|dev|σ)|(std|dev|σ).*(step|iter|time)|^(std|σ)$"),
    ("step_time", r"step|iter|time|total|latency|^(ms|s)$"),
    ("strategy", r"strateg|method|implement|variant|approach|scheme|algorithm|version|ddp|^name$"),
    ("model", r"model|size|params|parameters"),
)  # fmt: skip
NUMBERS = ("step_time", "step_time_std", "comm_time", "comm_time_std", "comm_frac")
# Words for a strategy → its name; the first that fits.
STRATEGIES = (
    ("none", r"^none|no (sync\w*|comm\w*|ddp)|without (sync\w*|comm\w*)|comput\w* only|single (gpu|process|device)"),
    ("zero1", r"zero|shard\w* optim"),
    ("fsdp", r"fsdp|fully shard"),
    ("overlap_bucket", r"bucket"),
    ("overlap_param", r"overlap"),
    ("naive", r"naive|individual|per param"),
    ("flat", r"flat|single all ?reduce"),
    ("ddp", r"(torch|pytorch|nn)?.*\bddp\b|distributed ?data ?parallel"),
)
UNITS = {
    "s": "s", "sec": "s", "secs": "s", "second": "s", "seconds": "s",
    "ms": "ms", "msec": "ms", "millisecond": "ms", "milliseconds": "ms",
    "us": "us", "µs": "us", "μs": "us", "usec": "us", "microseconds": "us", "ns": "ns", "%": "%", "percent": "%",
}  # fmt: skip
_RULE = re.compile(r"\s*\|?(\s*:?-{2,}:?\s*\|)+\s*(:?-{2,}:?\s*)?\|?\s*")
_CELL = re.compile(
    r"[~≈]?\s*(?P<value>[-+]?\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?)\s*"
    r"(?:(?:±|\+/-|\+-)\s*(?P<std>\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?)\s*)?(?P<unit>%|[a-zA-Zµμ]*)"
)
_MEGABYTES = {"": 1.0, "mb": 1.0, "gb": 1e3, "kb": 1e-3, "mib": 1.048576, "gib": 1073.741824, "kib": 0.001024}


@dataclass(frozen=True, slots=True)
class Rows:
    """rows: column → text, one number each. unread: headings that were not understood."""

    rows: tuple[dict[str, str], ...]
    unread: tuple[str, ...]


def read(text: str, unit: str = "") -> Rows:
    """The rows of all tables in the text. unit: of times, where neither heading nor cell names one."""
    rows: list[dict[str, str]] = []
    unread: dict[str, None] = {}
    for title, table in _tables(text):
        found = _long(title, table, unit)
        rows += found.rows
        unread |= dict.fromkeys(found.unread)
    return Rows(tuple(rows), tuple(unread))


# ── tables in a text ─────────────────────────────────────────────────────────────────────────────
def _tables(text: str) -> Iterator[tuple[str, list[list[str]]]]:
    """Each table as cells, the headings first, with the Markdown heading above it."""
    lines = text.removeprefix("\ufeff").splitlines()
    if not any(_RULE.fullmatch(line) for line in lines):
        yield "", _separated(text)
        return
    title = ""
    for number, line in enumerate(lines):
        if line.startswith("#"):
            title = line.strip("# ")
        if number and _RULE.fullmatch(line) and "|" in lines[number - 1]:
            body = []
            for row in lines[number + 1 :]:
                if "|" not in row:
                    break
                body.append(_cells(row))
            yield title, [_cells(lines[number - 1]), *body]


def _cells(line: str) -> list[str]:
    """The cells of a line of a Markdown table, without emphasis."""
    return [cell.strip().strip("*`_ ") for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]


def _separated(text: str) -> list[list[str]]:
    first = text.partition("\n")[0]
    separator = max(",\t;", key=first.count)
    return [row for row in csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline=""), delimiter=separator) if row]


# ── one table ────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class _Heading:
    """A heading that was understood. column: "" for one that is known and not needed."""

    column: str
    unit: str


def _long(title: str, table: Sequence[Sequence[str]], unit: str) -> Rows:
    if not table:
        return Rows((), ())
    headings = [_heading(text) for text in table[0]]
    known = [heading.column if heading else None for heading in headings]
    if "strategy" not in known:
        # The first column without numbers names the rows.
        for at, column in enumerate(known):
            texts = [row[at] for row in table[1:] if at < len(row)]
            if column in {None, "model", "bucket_mb"} and not any(_CELL.fullmatch(text) for text in texts):
                headings[at] = _Heading("strategy", "")
                break
    seconds = any(text.strip() == "calls_alone_s" for text in table[0])  # our own summary.csv, in seconds
    rows = [row for cells in table[1:] for row in _of(title, headings, cells, "s" if seconds else unit)]
    unread = [text.strip() or "(no name)" for text, heading in zip(table[0], headings, strict=True) if heading is None]
    return Rows(tuple(rows), tuple(unread))


def _heading(text: str) -> _Heading | None:
    unit, words = _unit_of(text.lower())
    for column, pattern in HEADINGS:
        if re.search(pattern, words):
            return _Heading(column, unit)
    return None


def _unit_of(text: str) -> tuple[str, str]:
    """The unit in a heading, and its words without it: `Step time (ms)`, `step_time_ms`, `ms/iter`, `comm %`."""
    for found in re.finditer(r"[(\[]\s*([^)\]]*?)\s*[)\]]", text):
        inside = found[1].partition("/")[0].strip()
        if inside in UNITS:
            return UNITS[inside], _words(text.replace(found[0], " "))
    rate = re.match(r"\s*([a-zµμ]+)\s*(?:/|per)\s*(step|iter\w*)", text)
    if rate and rate[1] in UNITS:
        return UNITS[rate[1]], _words(text[rate.end(1) :])
    words = _words(text)
    last = words.rpartition(" ")[2]
    if last in UNITS and last != words:
        return UNITS[last], words if last == "%" else words.rpartition(" ")[0]
    return ("%", words) if "%" in text else ("", words)


def _words(text: str) -> str:
    return " ".join(re.sub(r"[^\w%#σ]+|_", " ", text).split())


def _of(title: str, headings: Sequence[_Heading | None], cells: Sequence[str], unit: str) -> Iterator[dict[str, str]]:
    """The rows of one line: one for each number, and one for each deviation behind a ±."""
    shared = {"table": TABLE, "source": title}
    numbers: list[tuple[str, str, str]] = []
    for heading, text in zip(headings, cells, strict=False):
        text = text.strip()
        if heading is None or not heading.column or not text or text in {"-", "–", "—", "n/a", "N/A"}:
            continue
        if heading.column in NUMBERS:
            numbers.append((heading.column, heading.unit or ("" if heading.column == "comm_frac" else unit), text))
        else:
            shared[heading.column] = text
    shared["strategy"], bucket = _strategy(shared.get("strategy", ""))
    of_bytes = _megabytes(shared.pop("bucket_bytes", ""), 1e-6)
    shared["bucket_mb"] = _megabytes(shared.get("bucket_mb", "")) or of_bytes or bucket
    for metric, known, text in numbers:
        for name, value, of in _values(metric, known, text):
            yield {**shared, "metric": name, "value": value, "unit": of}


def _values(metric: str, unit: str, text: str) -> Iterator[tuple[str, str, str]]:
    """(metric, value, unit) of a cell."""
    found = _CELL.fullmatch(text)
    if found is None:
        yield metric, text, unit or "s"
        return
    value, std = (None if one is None else one.replace(",", "") for one in (found["value"], found["std"]))
    of = UNITS.get(found["unit"].lower(), found["unit"]) or unit
    if metric == "comm_frac" and not of:
        of = "1" if abs(float(value or 0)) <= 1 else "%"
    yield metric, value or "", of
    if std is not None and metric in {"step_time", "comm_time"}:
        yield f"{metric}_std", std, of


def _strategy(text: str) -> tuple[str, str]:
    """The name of a strategy in our words, and the bucket size that its text names, in MB."""
    words = _words(text.lower())
    size = re.search(r"(\d+(?:\.\d+)?)\s*([kmg]i?b)\b", text.lower())
    bucket = _megabytes("".join(size.groups())) if size else ""
    again = " again" if words.endswith(" again") else ""
    name = next((name for name, pattern in STRATEGIES if re.search(pattern, words)), None)
    return (name or text) + again, bucket if name in {None, "overlap_bucket", "ddp"} else ""


def _megabytes(text: str, of_one: float = 1.0) -> str:
    """A size in MB; of_one: megabytes of 1 where the text names no unit."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.lower().strip())
    if not found or found[2] not in _MEGABYTES:
        return text
    factor = _MEGABYTES[found[2]] if found[2] else of_one
    return f"{float(found[1]) * factor:g}"
