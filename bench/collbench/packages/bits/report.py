"""Report which results are identical bit by bit: a table, a sentence for each difference, and the rows as JSON.

In: rows of comparisons. Out: blocks, and a dictionary. Computes only sums and layout.
"""

from collections.abc import Sequence
from dataclasses import asdict

from collbench.model.records import Json
from collbench.model.units import format_bytes, format_share
from collbench.packages.bits.conclusions import Baseline, BitsRow, Compared, Differing
from collbench.report.blocks import Blocks, Column, Heading, items, keyed, left, section, table
from collbench.report.labels import NOTHING, counted, dtype_words, ranks_text

IDENTICAL = "identical"
# Largest number of sentences on differences; the rest is in bits.json.
MOST_SENTENCES = 24
EXPLAINED = (
    "Each cell compares results bit by bit, of data whose sums are rounded: identical, or the share of elements that "
    "differ over all sizes, with the largest distance between two of them in units in the last place (ULP)."
)


def headline(rows: Sequence[BitsRow], virtual: bool = False) -> str:
    """Format `11 of 36 comparisons are not the same bits (call again, fresh launch)`; a defect comes first.

    virtual: True if virtual GPUs were used in place of GPUs.
    """
    differing = [row for row in rows if not row.identical]
    defects = [row for row in rows if row.moves and (row.wrong or not row.identical)]
    kinds = ", ".join(dict.fromkeys(row.variation for row in rows))
    added = "; virtual GPUs: their sums are not NCCL's" if virtual else ""
    text = f"all of {counted(len(rows), 'comparison')} are the same bits ({kinds})"
    if differing:
        text = f"{len(differing)} of {counted(len(rows), 'comparison')} are not the same bits ({kinds})"
    if defects:
        return f"DEFECT: data that are only moved do not arrive as they were sent; {text}{added}"
    return text + added


def brief(rows: Sequence[BitsRow]) -> Blocks:
    """Return the table of operations that differ, then lines on operations that are identical in every variation."""
    differing = {(_name(row), row.case.world_size) for row in rows if row.wrong or not row.identical}
    shown = [row for row in rows if (_name(row), row.case.world_size) in differing]
    same: dict[str, list[int]] = {}
    for row in rows:
        worlds = same.setdefault(_name(row), [])
        if (_name(row), row.case.world_size) not in differing and row.case.world_size not in worlds:
            worlds.append(row.case.world_size)
    by_worlds: dict[str, list[str]] = {}
    for name, worlds in same.items():
        if worlds:
            by_worlds.setdefault(ranks_text(worlds[0]) if len(worlds) == 1 else _listed(worlds), []).append(name)
    lines = [f"identical in every variation on {worlds}: {', '.join(names)}" for worlds, names in by_worlds.items()]
    return [*results(shown), *lines]


def _listed(worlds: Sequence[int]) -> str:
    return f"{', '.join(map(str, worlds[:-1]))} and {worlds[-1]} ranks"


def results(rows: Sequence[BitsRow]) -> Blocks:
    """Return a table: a row per operation, dtype, backend and world size, and a column per variation."""
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        cells.setdefault((_name(row), ranks_text(row.case.world_size)), {})[row.variation] = cell(row)
    columns: list[Column[tuple[str, str]]] = [left("operation", lambda key: key[0]), left("", lambda key: key[1])]
    variations = dict.fromkeys(row.variation for row in rows)
    columns += keyed(zip(variations, variations, strict=True), lambda key, name: cells[key].get(name, NOTHING), "left")
    return table(cells, columns)


def cell(row: BitsRow) -> str:
    """Format a cell as `identical`, or as `31.7%, 3 ULP`."""
    if row.wrong:
        return f"{row.wrong} wrong"
    if row.identical:
        return IDENTICAL
    elements = sum(comparison.elements for comparison in row.comparisons)
    differing = sum(comparison.differing for comparison in row.comparisons)
    if row.moves:
        return f"{differing} differ"
    furthest = max(comparison.furthest_ulp for comparison in row.comparisons)
    return f"{100 * differing / elements:.3g}%, {furthest} ULP"


def sentences(rows: Sequence[BitsRow]) -> list[str]:
    """Return a sentence per row that differs: smallest size, first element, and share nearer to the exact sum."""
    texts = []
    for row in rows:
        differing = sorted((c for c in row.comparisons if c.differing), key=lambda c: c.size_bytes)
        if differing:
            texts.append(f"{_name(row)}, {ranks_text(row.case.world_size)}, {row.variation}: {_sentence(differing)}")
        elif row.wrong:
            texts.append(f"{_name(row)}: {row.wrong} elements arrived otherwise than they were sent")
    more = len(texts) - MOST_SENTENCES
    return [*texts[:MOST_SENTENCES], *([f"and {more} more: bits.json"] if more > 0 else [])]


def _sentence(differing: Sequence[Differing]) -> str:
    first, most = differing[0], max(differing, key=lambda comparison: comparison.share)
    rank, element = first.first or (0, 0)
    text = (
        f"from {format_bytes(first.size_bytes)} on ({_which(first.compared)}); first element {element} of rank {rank}"
    )
    text += f"; most at {format_bytes(most.size_bytes)}, {format_share(most.share, 1)}"
    before, after = (sum(comparison.nearer[side] for comparison in differing) for side in (0, 1))
    if before + after:
        text += (
            f"; in {format_share(after / (before + after))} of these elements this result is nearer to the exact sum"
        )
    return text


def _which(compared: Compared) -> str:
    """Format the compared results as `launch 2 with launch 1`."""
    match compared.baseline:
        case Baseline.FIRST_CALL:
            return f"launch {compared.launch}"
        case Baseline.SIDE_A:
            return "side B with side A"
        case Baseline.FIRST_LAUNCH:
            return f"launch {compared.launch} with launch 1"
        case Baseline.RANK_0:
            return "with rank 0"
        case Baseline.OTHER_OPTION:
            return f"with {compared.option}"
    return f"beginning of {compared.size_bytes} B"


def document(rows: Sequence[BitsRow], name: str, virtual: bool = False) -> Blocks:
    """Return the blocks of bits.md."""
    differs = section("What differs", items(sentences(rows)))
    return [
        Heading(f"{name}: is it the same sum?", 1),
        headline(rows, virtual),
        *results(rows),
        EXPLAINED,
        *differs,
    ]


def as_json(rows: Sequence[BitsRow]) -> Json:
    """Return the content of bits.json: the rows with all their comparisons."""
    return {
        "rows": [
            {
                "operation": row.case.op,
                "dtype": row.case.dtype,
                "backend": row.case.backend,
                "world_size": row.case.world_size,
                "reduce_op": row.case.reduce_op,
                "variation": row.variation,
                "identical": row.identical,
                "moves": row.moves,
                "wrong": row.wrong,
                "comparisons": [asdict(comparison) | {"share": comparison.share} for comparison in row.comparisons],
            }
            for row in rows
        ]
    }


def _name(row: BitsRow) -> str:
    return " ".join([row.case.op, *dtype_words(row.case), "on", row.case.backend])
