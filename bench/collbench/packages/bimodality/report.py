"""Write a run's conclusions on modes as sentences: modes of gloo's calls, and of launches.

In: conclusions. Out: sentences. Computes only shares and layout.
"""

from collbench.model.conclusions import Analysis
from collbench.model.pages import page
from collbench.model.records import Run
from collbench.model.units import counted, format_bytes, format_seconds, format_share
from collbench.packages.bimodality.conclusions import (
    SMALL_BYTES,
    Companion,
    GlooStalls,
    LaunchModes,
    StallVerdict,
    modes_of,
)
from collbench.report.labels import between, enumerated, label
from collbench.report.text import Text

# Cause and remedy of gloo's stalls.
STUDY = f"`{page('studies/gloo-stalls')}`"
# Command that compares small calls with and without the remedy, as in `make gloo-stalls`.
TEST = "collbench ab gloo-stalls --b 'scheduling=[batch]'"
# The sentence of each verdict: `waits`, calls that wait; `batch`, how fast calls are under SCHED_BATCH.
SENTENCES = {
    StallVerdict.STALLS: "**gloo stalls here**: {waits} for a lock that gloo spins on; {batch}. In your program: "
    f"`os.sched_setscheduler` for its threads gloo_tcp_loop, after `init_process_group` ({STUDY}).",
    StallVerdict.NONE: f"**No stall here that SCHED_BATCH removes** ({STUDY}): {{both}}.",
    StallVerdict.UNTESTED: "**gloo may stall here**: {waits}, possibly for a lock that gloo spins on "
    f"({STUDY}); `{TEST}` tests the remedy.",
    StallVerdict.UNDECIDED: f"**Undecided whether gloo stalls here** ({STUDY}): {{both}}.",
}
# Largest number of cases with launches of two kinds that are described one by one.
MOST_CASES = 3


def describe(run: Run, analysis: Analysis) -> Text:
    """Return the sentences on modes."""
    return Text(answer=answers(analysis))


def answers(analysis: Analysis) -> list[str]:
    """Return sentences on gloo's calls, then on each case whose launches are of two kinds (the first MOST_CASES)."""
    modes = modes_of(analysis)
    stalls = [stalls_sentence(conclusion, len(modes.stalls) > 1) for conclusion in modes.stalls]
    launches = [launches_sentence(conclusion) for conclusion in modes.launches[:MOST_CASES]]
    more = len(modes.launches) - MOST_CASES
    return [*stalls, *launches, *([f"{counted(more, 'further case')} with launches of two kinds."] if more > 0 else [])]


def launches_sentence(modes: LaunchModes) -> str:
    """Format `2 of 8 launches take 41.0 ms, 6 take 28.0 ms: a launch is slow with probability 0.25 [0.03 – 0.65]`."""
    slow, fast = len(modes.slow), modes.launches - len(modes.slow)
    different = "; ".join(map(companion_words, modes.companions))
    compared = ", ".join(fact.value.format(rank="each rank") for fact in modes.compared)
    reason = f"different: {different}" if different else f"none of these goes with it: {compared}"
    return (
        f"**Launches of two kinds**, {label(modes.case)}: {slow} of {modes.launches} launches take "
        f"{format_seconds(modes.slow_s)}, {fast} take {format_seconds(modes.fast_s)}: a launch is slow with "
        f"probability {slow / modes.launches:.2f} [{modes.low:.2f} – {modes.high:.2f}], so their mean is not typical; "
        f"{reason}."
    )


def companion_words(companion: Companion) -> str:
    """Format facts as `cores of rank 0, cores of rank 1 (slow: 0; others: 0, 1)`."""
    facts = ", ".join(fact.value.format(rank=rank) for fact, rank in companion.facts)
    if companion.more is not None:
        return f"{facts} ({'more' if companion.more else 'less'} where slow)"
    return f"{facts} (slow: {enumerated(companion.slow, 'or')}; others: {enumerated(companion.others, 'or')})"


def stalls_sentence(stalls: GlooStalls, with_ranks: bool = False) -> str:
    """Describe the stalls of gloo's small calls and the change under SCHED_BATCH, then what casts doubt on a cause."""
    waits, batch, slower = "", "", False
    if stalls.cases:
        ranks = enumerated(sorted({case.world_size for case in stalls.cases}), "or")
        sizes = sorted({case.size_bytes for case in stalls.cases})
        smallest, largest = format_bytes(sizes[0]), format_bytes(sizes[-1])
        calls = f"calls ({between(smallest, largest) if len(sizes) > 1 else smallest}, {ranks} ranks)"
        waits = f"{format_share(stalls.share)} of {calls} wait {format_seconds(stalls.wait_s)}"
    if stalls.factor is not None:
        small = f"calls of up to {format_bytes(SMALL_BYTES)}"
        if with_ranks:
            small += f" with {enumerated(stalls.ranks, 'or')} ranks"
        value, low, high = stalls.factor.value, stalls.factor.low, stalls.factor.high
        if slower := high < 1:
            value, low, high = 1 / value, 1 / high, 1 / low
        times = f"{value:.1f} times as {'long' if slower else 'fast'} [{low:.1f} – {high:.1f}]"
        batch = f"under SCHED_BATCH {small} {'take' if slower else 'are'} {times}"
    doubt = stalls.batch_waits or stalls.disturbed
    remarks = {
        "More launches would show it.": stalls.verdict == StallVerdict.UNDECIDED and not doubt,
        "Calls wait under SCHED_BATCH, too: this may not be gloo's lock.": stalls.batch_waits,
        "Such a loss was seen where other programs computed on the same cores.": slower,
        "Other programs used the cores meanwhile: calls wait for these, too.": stalls.disturbed,
    }
    sentence = SENTENCES[stalls.verdict].format(
        waits=waits or "small calls wait", batch=batch, both="; ".join(filter(None, (waits, batch)))
    )
    return " ".join([sentence, *(remark for remark, holds in remarks.items() if holds)])
