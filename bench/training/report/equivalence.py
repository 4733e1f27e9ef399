"""Write an equivalence proof as Markdown, and draw its loss curves.

In: an `EquivalenceResult`. Out: Markdown, and a figure with one panel for each topic. Judges nothing:
`training.equivalence.verdict` does.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.report import markdown
from bench.report.plots.plot_style import COLOURS, LINES, MARKERS, STYLE, save
from bench.report.tables import NOTHING
from bench.training.equivalence import EquivalenceResult, PairTrial, SamplerTrial, TrialResult, verdict

PICTURE, DOCUMENT = "losses.png", "equivalence.md"
MUST = {"equal": "yes: equal", "differ": "yes: different (control)", "shown": "no"}
COLUMNS = 3
# About so many markers a curve. Each curve has them at other points, so that curves that coincide can be told apart.
MARKS = 6
# The curve of one process: a broad pale line in the colour of the first case that is compared with it.
REFERENCE: Any = {"linewidth": 6, "alpha": 0.3, "solid_capstyle": "round", "zorder": 1}


# ── words ────────────────────────────────────────────────────────────────────────────────────────
def headline(proof: EquivalenceResult) -> str:
    """One sentence: whether the proof holds."""
    judged = [held for one in proof.found if (held := verdict(one)[0]) is not None]
    ranks = f"{proof.world_size} ranks, {proof.steps} steps"
    if proof.failure is not None:
        return f"NOT PROVEN ({ranks}): {proof.failure}"
    if not all(judged):
        return f"BROKEN ({ranks}): {judged.count(False)} of {len(judged)} that must hold do not"
    return f"HOLDS ({ranks}): all {len(judged)} equivalences and controls are as they must be"


def table(proof: EquivalenceResult) -> str:
    """One row for each trial."""
    difference = f"largest relative parameter difference after {proof.steps} steps"
    headers = ["case", "must hold?", difference, "allowed", "verdict"]
    return markdown.table([_row(one) for one in proof.found], headers, ["left", "left", "right", "right", "left"])


def readings(proof: EquivalenceResult) -> str:
    """The examples that the sampler gave to each rank. A list, because a table cannot hold the bars between ranks."""
    return markdown.lines(
        f"{one.trial.name}: `{one.read or NOTHING}`"
        + (f", expected `{one.trial.expected}`" if verdict(one)[0] is False else "")
        for one in proof.found
        if isinstance(one.trial, SamplerTrial)
    )


def document(proof: EquivalenceResult) -> str:
    """The whole document, with a link to the picture."""
    k = proof.world_size
    return f"""# Does data-parallel training train the same model?

{headline(proof)}.

A small model is trained twice from the same parameters on the same examples: by K = {k} ranks (gloo,
DistributedDataParallel) on B / K examples each, and by one process on B. A difference is max |a − b| / max |b| of a
parameter, the largest over parameters and ranks. Equal means up to rounding, and that the loss fell: parameters that
did not move would be equal too. A control makes one mistake and must differ, or the comparison could not tell.

{table(proof)}

Which examples the ranks read:

{readings(proof)}

Where a batch of B a rank makes the batch of a step K times as large, as many examples are seen in 1 / K of the steps:
lr × K makes up for that about, and not exactly. Adam divides a gradient by its own size, so a factor in it does
nothing but weigh ε less. Where K does not divide N, padding counts the first examples twice. BatchNorm takes its
statistics from a rank's own share (SyncBatchNorm takes them from all, on GPUs).

![loss curves]({PICTURE})
"""


def _row(found: TrialResult) -> list[str]:
    trial, words = found.trial, verdict(found)[1]
    if isinstance(trial, SamplerTrial):
        return [trial.name, MUST[trial.must], NOTHING, "exactly these", words]
    difference = NOTHING if found.difference is None else f"{found.difference:.2g}"
    return [f"{trial.name}, {trial.dtype}", MUST[trial.must], difference, _allowed(trial), words]


def _allowed(case: PairTrial) -> str:
    if case.allowed is None:
        return NOTHING
    if case.must == "differ":
        return f"> {case.allowed:g}"
    return f"≤ {case.allowed:g}" if case.allowed else "0 (same bits)"


# ── picture ──────────────────────────────────────────────────────────────────────────────────────
def draw(proof: EquivalenceResult, folder: Path) -> Path:
    """Draw the loss curves of all cases, one panel for each topic. Returns the PNG's path."""
    folder.mkdir(parents=True, exist_ok=True)
    with rc_context(STYLE):
        save(_figure(proof), folder / PICTURE)
    return folder / PICTURE


def _figure(proof: EquivalenceResult) -> Figure:
    topics: dict[str, list[TrialResult]] = {}
    for one in proof.found:
        if isinstance(one.trial, PairTrial) and one.loss:
            topics.setdefault(one.trial.topic, []).append(one)
    rows = max(1, -(-len(topics) // COLUMNS))
    figure = Figure(figsize=(5.2 * COLUMNS, 0.9 + 5.0 * rows), layout="constrained")
    panels = list(figure.subplots(rows, COLUMNS, squeeze=False).flat)
    for axes, (topic, members) in zip(panels, topics.items(), strict=False):
        _panel(axes, topic, members)
    for axes in panels[len(topics) :]:
        axes.set_visible(False)
    figure.suptitle(
        f"Does data-parallel training train the same model?  {headline(proof).partition(':')[0]}\n"
        "broad and pale: one process, in the colour of the first case that is held against it",
        x=0.01, ha="left", fontsize=12,
    )  # fmt: skip
    figure.supylabel("loss of all examples", fontsize=10)
    figure.supxlabel("examples seen by all ranks together", fontsize=10)
    return figure


def _panel(axes: Axes, topic: str, members: Sequence[TrialResult]) -> None:
    axes.set_title(topic, fontsize=10.5)
    # The curves of both precisions look the same: only the first is drawn.
    distinct = list({one.trial.name: one for one in reversed(members)}.values())[::-1]
    drawn: set[tuple[float, ...]] = set()
    for style, one in enumerate(distinct):
        colour = COLOURS[style % len(COLOURS)]
        if one.alone and one.alone not in drawn:
            axes.plot(_seen(one.alone, one.examples[1]), one.alone, color=colour, **REFERENCE)
            drawn.add(one.alone)
        every = max(1, len(one.loss) // MARKS)
        axes.plot(
            _seen(one.loss, one.examples[0]),
            one.loss,
            label=f"{one.trial.name}: {verdict(one)[1]}",
            color=colour,
            marker=MARKERS[style % len(MARKERS)],
            linestyle=LINES[style % len(LINES)],
            markevery=(style * every // len(distinct), every),
            markersize=5,
            linewidth=1.2,
        )
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=7.5, loc="upper center", bbox_to_anchor=(0.5, -0.08))


def _seen(losses: Sequence[float], batch: int) -> list[int]:
    return [batch * step for step in range(len(losses))]
