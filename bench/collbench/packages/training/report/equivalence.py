"""Write an equivalence proof, and draw its loss curves.

In: a `Proof`. Out: blocks, and a figure with one panel for each topic.
"""

from collections.abc import Iterable
from typing import Any

from matplotlib.figure import Figure

from collbench.model.pages import page
from collbench.model.projection import grouped
from collbench.packages.training.catalog.equivalence import LEAST_DIFFERENCE, Proof, Trial, TrialResult, verdict
from collbench.report.blocks import Blocks, Column, Heading, Picture, keyed, left, table
from collbench.report.labels import NOTHING, optional
from collbench.report.plots.figures import look, name_axes
from collbench.report.plots.figures import page as plot_page

PICTURE, DOCUMENT = "losses.png", "equivalence.md"
EXPECTED = {"equal": "same", "differ": "differs", "shown": "either"}
# Columns of panels, and the height of a panel in inches.
COLUMNS, HEIGHT = 2, 2.6
# Approximate number of markers per curve, at other points on each curve, so that coinciding curves are distinguishable.
MARKS = 6
PALE: Any = {"linewidth": 6, "alpha": 0.3, "solid_capstyle": "round", "zorder": 1}
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
    judged = [holds for holds, _ in map(verdict, proof.results) if holds is not None]
    ranks = f"{proof.world_size} ranks, {proof.steps} steps"
    if proof.failure is not None:
        return f"NOT PROVEN ({ranks}): {proof.failure}"
    if not all(judged):
        return f"BROKEN ({ranks}): {judged.count(False)} of {len(judged)} that must hold do not"
    untried = len(proof.results) - len(judged)
    note = f"; {untried} could not be tried here, or are inconclusive" if untried else ""
    return f"HOLDS ({ranks}): all {len(judged)} trials gave the expected result, same or different{note}"


def tables(proof: Proof) -> Blocks:
    """Return a table with one row per trial."""
    columns: list[Column[TrialResult]] = [
        left("trial", lambda result: f"{result.trial.name}, {result.trial.dtype}"),
        left("expected", lambda result: EXPECTED[result.trial.must]),
        Column(
            f"largest relative parameter difference after {proof.steps} steps",
            lambda result: optional(result.difference, "{:.2g}".format),
        ),
        Column("allowed", lambda result: _limit(result.trial)),
        left("verdict", lambda result: verdict(result)[1]),
    ]
    return table(proof.results, columns)


def _limit(trial: Trial) -> str:
    equal = f"≤ {trial.allowed:g}" if trial.allowed else "0 (same bits)"
    return {"equal": equal, "differ": f"> {LEAST_DIFFERENCE:g}", "shown": NOTHING}[trial.must]


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


def losses(proof: Proof) -> list[Figure]:
    """Draw the loss curves of all trials, one panel for each topic.

    The curve of one process is a broad pale line in the colour of the first trial that is compared with it.
    """
    # The curves of both precisions look the same: only the first is drawn.
    named = grouped((result for result in proof.results if result.loss), lambda result: result.trial.name)
    topics = grouped((same[0] for same in named.values()), lambda result: result.trial.topic)
    title = (
        f"Does data-parallel training train the same model?  {headline(proof).partition(':')[0]}\n"
        "broad and pale: one process, in the colour of the first trial that is compared with it"
    )
    figure, grid = plot_page(title, [HEIGHT] * max(1, -(-len(topics) // COLUMNS)), COLUMNS)
    for axes, (topic, results) in zip(grid.flat, topics.items(), strict=False):
        axes.set_title(topic)
        drawn: set[tuple[float, ...]] = set()
        for style, result in enumerate(results):
            options, every = look(style, style), max(1, len(result.loss) // MARKS)
            # The one process may make more steps, of fewer examples each; compared ranks have no such curve.
            seen, seen_alone = (
                [batch * step for step in range(len(curve))]
                for batch, curve in zip(result.examples, (result.loss, result.alone), strict=True)
            )
            if result.alone not in drawn:
                axes.plot(seen_alone, result.alone, color=options["color"], **PALE)
                drawn.add(result.alone)
            options |= {"markevery": (style * every // len(results), every)}
            axes.plot(seen, result.loss, label=f"{result.trial.name}: {verdict(result)[1]}", linewidth=1.2, **options)
        axes.set_ylim(bottom=0)
        axes.legend(fontsize="x-small", loc="upper center", bbox_to_anchor=(0.5, -0.08))
    name_axes(figure, "", "loss of all examples", grid.flat[len(topics) :])
    figure.supxlabel("examples seen by all ranks together")
    return [figure]


# ── what a sampler gives each rank ───────────────────────────────────────────────────────────────
def sampler(examples: int, ranks: int, batch: int, drop_last: bool) -> Blocks:
    """Return the examples that torch's DistributedSampler gives each rank in each step of an epoch.

    Example i goes to rank i mod K. If K does not divide the number of examples (at least K), the first examples fill up
    the last round; with drop_last, that round is left out. batch: examples per rank and step.
    """
    share = examples // ranks if drop_last else -(-examples // ranks)
    order = [number % examples for number in range(share * ranks)]
    columns: list[Column[int]] = [Column("step", lambda first: str(first // batch + 1))]
    columns += keyed(
        ((f"rank {rank}", order[rank::ranks]) for rank in range(ranks)),
        lambda first, numbers: _named(numbers[first : first + batch]),
    )
    twice, never = _named(order[examples:]), _named(range(len(order), examples))
    remark = f"read twice: {twice}" if twice else f"not read: {never}" if never else "each is read once"
    closing = f"An epoch of {examples} examples, x1 to x{examples}, not shuffled; {remark}."
    return [*table(range(0, share, batch), columns), closing]


def _named(numbers: Iterable[int]) -> str:
    return " ".join(f"x{number + 1}" for number in numbers)
