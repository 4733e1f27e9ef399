"""Write an equivalence proof, and draw its loss curves.

In: a `Proof`. Out: blocks, and a figure with one panel for each topic. Judges nothing.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from collbench.model.pages import page
from collbench.packages.training.catalog.equivalence import Proof, Verdict, dealt
from collbench.report.blocks import Blocks, Column, Heading, Picture, keyed, left, table
from collbench.report.labels import NOTHING, optional
from collbench.report.plots.figures import draw_pages, look, name_axes
from collbench.report.plots.figures import page as plot_page

PICTURE, DOCUMENT = "losses.png", "equivalence.md"
EXPECTED = {"equal": "same", "differ": "differs", "shown": "either"}
# Columns of panels, and the height of a panel in inches.
COLUMNS, HEIGHT = 2, 2.6
# Approximate number of markers per curve, at other points on each curve, so that coinciding curves are distinguishable.
MARKS = 6
TRIED = (
    "A small model is trained twice from the same parameters on the same examples: by K = {k} ranks (gloo, "
    "DistributedDataParallel) on B / K examples each, and by one process on B. A difference is max |a − b| / max |b| "
    "of a parameter, the largest over parameters and ranks. The same means up to rounding, and that the loss fell: "
    "parameters that did not move would be equal too. Trials that must differ check the comparison."
)
DIFFERENT = (
    f"{page('training')} says when averaging parameters is the same as averaging gradients. With a batch of B per "
    "rank, the batch of a step is K times as large, so as many examples take 1 / K of the steps: lr × K makes up for "
    "that approximately. Adam divides a gradient by its own size, so a constant factor only makes ε matter less. "
    "If K does not divide N, padding counts the first examples twice. BatchNorm takes its statistics from a "
    "rank's own share."
)


def headline(proof: Proof) -> str:
    """Return one sentence that states whether the proof holds."""
    judged = [verdict.holds for verdict in proof.verdicts if verdict.holds is not None]
    ranks = f"{proof.world_size} ranks, {proof.steps} steps"
    if proof.failure is not None:
        return f"NOT PROVEN ({ranks}): {proof.failure}"
    if not all(judged):
        return f"BROKEN ({ranks}): {judged.count(False)} of {len(judged)} that must hold do not"
    untried = len(proof.verdicts) - len(judged)
    note = f"; {untried} could not be tried here, or are inconclusive" if untried else ""
    return f"HOLDS ({ranks}): all {len(judged)} trials gave the expected result, same or different{note}"


def sampler(examples: int, ranks: int, batch: int, drop_last: bool) -> Blocks:
    """Return the examples that each rank reads in each step of an epoch, and the examples read twice or never."""
    steps = dealt(examples, ranks, batch, drop_last)
    read = Counter(number for step in steps for share in step for number in share)
    rows = [(str(number), *(_named(share) for share in step)) for number, step in enumerate(steps, 1)]
    columns: list[Column[tuple[str, ...]]] = [Column("step", lambda row: row[0])]
    columns += keyed([(f"rank {rank}", rank + 1) for rank in range(ranks)], lambda row, at: row[at])
    twice = _named(number for number, times in sorted(read.items()) if times > 1)
    never = _named(number for number in range(examples) if number not in read)
    remark = f"read twice: {twice}" if twice else f"not read: {never}" if never else "each is read once"
    return [*table(rows, columns), f"An epoch of {examples} examples, x1 to x{examples}, not shuffled; {remark}."]


def _named(numbers: Iterable[int]) -> str:
    return " ".join(f"x{number + 1}" for number in numbers)


def tables(proof: Proof) -> Blocks:
    """Return a table with one row per trial."""
    size = f"largest relative parameter difference after {proof.steps} steps"
    columns: list[Column[Verdict]] = [
        left("trial", lambda verdict: f"{verdict.result.trial.name}, {verdict.result.trial.dtype}"),
        left("expected", lambda verdict: EXPECTED[verdict.result.trial.must]),
        Column(size, lambda verdict: optional(verdict.result.difference, "{:.2g}".format)),
        Column("allowed", lambda verdict: verdict.limit or NOTHING),
        left("verdict", lambda verdict: verdict.text),
    ]
    return table(proof.verdicts, columns)


def document(proof: Proof) -> Blocks:
    """Return the whole document, with the picture."""
    return [
        Heading("Does data-parallel training train the same model?", 1),
        f"{headline(proof)}.",
        TRIED.format(k=proof.world_size),
        *tables(proof),
        DIFFERENT,
        Picture("loss curves", PICTURE),
    ]


def draw(proof: Proof, folder: Path) -> Path:
    """Draw the loss curves of all trials, one panel for each topic. Returns the PNG's path.

    The curve of one process is a broad pale line in the colour of the first trial that is compared with it.
    """
    draw_pages([folder / Path(PICTURE).stem], _losses, proof)
    return folder / PICTURE


def _losses(proof: Proof) -> list[Figure]:
    # The curves of both precisions look the same: only the first is drawn.
    topics: dict[str, dict[str, Verdict]] = {}
    for verdict in proof.verdicts:
        trial = verdict.result.trial
        if verdict.result.loss:
            topics.setdefault(trial.topic, {}).setdefault(trial.name, verdict)
    title = (
        f"Does data-parallel training train the same model?  {headline(proof).partition(':')[0]}\n"
        "broad and pale: one process, in the colour of the first trial that is compared with it"
    )
    figure, grid = plot_page(title, [HEIGHT] * max(1, -(-len(topics) // COLUMNS)), COLUMNS)
    for axes, (topic, verdicts) in zip(grid.flat, topics.items(), strict=False):
        axes.set_title(topic)
        drawn: set[tuple[float, ...]] = set()
        for style, (name, verdict) in enumerate(verdicts.items()):
            result, options = verdict.result, look(style, style)
            examples, examples_alone = (
                [batch * step for step in range(len(losses))]
                for batch, losses in zip(result.examples, (result.loss, result.alone), strict=True)
            )
            if result.alone not in drawn:
                pale_line: Any = {"linewidth": 6, "alpha": 0.3, "solid_capstyle": "round", "zorder": 1}
                axes.plot(examples_alone, result.alone, color=options["color"], **pale_line)
                drawn.add(result.alone)
            every = max(1, len(result.loss) // MARKS)
            options |= {"markevery": (style * every // len(verdicts), every), "label": f"{name}: {verdict.text}"}
            axes.plot(examples, result.loss, linewidth=1.2, **options)
        axes.set_ylim(bottom=0)
        axes.legend(fontsize="x-small", loc="upper center", bbox_to_anchor=(0.5, -0.08))
    name_axes(figure, "", "loss of all examples", grid.flat[len(topics) :])
    figure.supxlabel("examples seen by all ranks together")
    return [figure]
