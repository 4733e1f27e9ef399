"""Report which results are identical bit by bit: a table, a sentence for each difference, and the rows as JSON.

In: rows of comparisons. Out: blocks, and a dictionary. Computes only sums and layout.
"""

from collections.abc import Sequence
from dataclasses import asdict

from collbench.model.projection import grouped
from collbench.model.records import Json
from collbench.model.units import format_bytes, format_share
from collbench.packages.bits.conclusions import BitsRow, Differing, Variation
from collbench.report.blocks import Blocks, Heading, items, left, pivot, section
from collbench.report.labels import counted, dtype_words, enumerated, ranks_text

# Largest number of sentences on differences; the rest is in bits.json.
MOST_SENTENCES = 24
# For each variation, what its results are compared with, and both results in words, from a `Compared`.
COMPARED: dict[str, tuple[str, str]] = {
    Variation.AGAIN: ("first call of the launch", "launch {0.launch}"),
    Variation.LAUNCH: ("launch 1", "launch {0.launch} with launch 1"),
    Variation.RANKS: ("rank 0", "with rank 0"),
    Variation.LARGER: ("larger message", "beginning of {0.size_bytes} B"),
    Variation.SIDE: ("side A", "side B with side A"),
}
# The same for options of the configuration.
OTHER_OPTION = ("another option", "with {0.option}")
EXPLAINED = (
    "Each cell compares results bit by bit, of data whose sums are rounded: identical, or the share of elements that "
    "differ over all sizes, with the largest distance between two of them in units in the last place (ULP)."
)


def headline(rows: Sequence[BitsRow], virtual: bool = False) -> str:
    """Format `11 of 36 results are not the same bits (call again, fresh launch)`; a defect comes first.

    In brackets: the variations that differ, or all if none does. virtual: True if virtual GPUs were used in place of
    GPUs.
    """
    differing, number = [row for row in rows if not row.identical], counted(len(rows), "result")
    kinds = ", ".join(dict.fromkeys(row.variation for row in differing or rows))
    text = f"{len(differing)} of {number} are not" if differing else f"all of {number} are"
    text += f" the same bits ({kinds})" + ("; virtual GPUs: their sums are not NCCL's" if virtual else "")
    defect = any(row.moves and (row.wrong or not row.identical) for row in rows)
    return ("DEFECT: data that are only moved do not arrive as they were sent; " if defect else "") + text


def brief(rows: Sequence[BitsRow]) -> Blocks:
    """Return the table of operations that differ, then lines on operations that are identical in every variation."""
    rows_of = grouped(rows, lambda row: (_name(row), row.case.world_size))
    same = [key for key, members in rows_of.items() if all(row.identical and not row.wrong for row in members)]
    worlds_of = {name: tuple(world for _, world in keys) for name, keys in grouped(same, lambda key: key[0]).items()}
    lines = [
        f"identical in every variation on {enumerated(worlds)} rank{'s' * (worlds != (1,))}: {', '.join(names)}"
        for worlds, names in grouped(worlds_of, lambda name: worlds_of[name]).items()
    ]
    return [*results([row for row in rows if (_name(row), row.case.world_size) not in same]), *lines]


def results(rows: Sequence[BitsRow]) -> Blocks:
    """Return a table: a row per operation, dtype, backend and world size, and a column per variation."""
    names = [left("operation", _name), left("", lambda row: ranks_text(row.case.world_size))]
    variations = (lambda row: row.variation, [row.variation for row in rows])
    return pivot(rows, names, variations, [left("", cell)])


def cell(row: BitsRow) -> str:
    """Format a cell as `identical`, or as `31.7%, 3 ULP`."""
    if row.wrong:
        return f"{row.wrong} wrong"
    if row.identical:
        return "identical"
    differing = sum(comparison.differing for comparison in row.comparisons)
    if row.moves:
        return f"{differing} differ"
    elements = sum(comparison.elements for comparison in row.comparisons)
    furthest = max(comparison.furthest_ulp for comparison in row.comparisons)
    return f"{100 * differing / elements:.3g}%, {furthest} ULP"


def sentences(rows: Sequence[BitsRow]) -> list[str]:
    """Return a sentence per row that differs: smallest size, first element, and share nearer to the exact sum."""
    texts = []
    for row in rows:
        differing = sorted((c for c in row.comparisons if c.differing), key=lambda c: c.size_bytes)
        if differing:
            texts.append(_sentence(row, differing))
        elif row.wrong:
            texts.append(f"{_name(row)}: {row.wrong} elements arrived otherwise than they were sent")
    more = len(texts) - MOST_SENTENCES
    return [*texts[:MOST_SENTENCES], *([f"and {more} more: bits.json"] if more > 0 else [])]


def _sentence(row: BitsRow, differing: Sequence[Differing]) -> str:
    first, most = differing[0], max(differing, key=lambda comparison: comparison.share)
    rank, element = first.first or (0, 0)
    which = COMPARED.get(row.variation, OTHER_OPTION)[1].format(first.compared)
    text = (
        f"{_name(row)}, {ranks_text(row.case.world_size)}, {row.variation}: from {format_bytes(first.size_bytes)} on "
        f"({which}); first element {element} of rank {rank}; most at {format_bytes(most.size_bytes)}, "
        f"{format_share(most.share, 1)}"
    )
    before, after = (sum(comparison.nearer[side] for comparison in differing) for side in (0, 1))
    if before + after:
        share = format_share(after / (before + after))
        text += f"; in {share} of these elements this result is nearer to the exact sum"
    return text


def document(rows: Sequence[BitsRow], name: str, virtual: bool = False) -> Blocks:
    """Return the blocks of bits.md."""
    differs = section("What differs", items(sentences(rows)))
    return [Heading(f"{name}: is it the same sum?", 1), headline(rows, virtual), *results(rows), EXPLAINED, *differs]


def as_json(rows: Sequence[BitsRow]) -> Json:
    """Return the content of bits.json: the rows with all their comparisons."""
    return {"rows": [_row_as_json(row) for row in rows]}


def _row_as_json(row: BitsRow) -> Json:
    baseline, _ = COMPARED.get(row.variation, OTHER_OPTION)
    return {
        "operation": row.case.op,
        **{name: getattr(row.case, name) for name in ("dtype", "backend", "world_size", "reduce_op")},
        **{name: getattr(row, name) for name in ("variation", "identical", "moves", "wrong")},
        "comparisons": [
            asdict(differing)
            | {"compared": {"baseline": baseline, **asdict(differing.compared)}, "share": differing.share}
            for differing in row.comparisons
        ],
    }


def _name(row: BitsRow) -> str:
    return " ".join([row.case.op, *dtype_words(row.case), "on", row.case.backend])
