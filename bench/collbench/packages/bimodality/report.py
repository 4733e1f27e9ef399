"""Write a run's conclusions on modes as sentences: modes of gloo's calls, and of launches.

In: conclusions. Out: sentences. Computes only shares and layout.
"""

from collbench.model.conclusions import Analysis
from collbench.model.pages import page
from collbench.model.records import Run
from collbench.model.units import counted, format_bytes, format_seconds, format_share
from collbench.packages.bimodality.conclusions import Companion, GlooStalls, LaunchFact, LaunchModes, modes_of
from collbench.report.labels import between, enumerated, label
from collbench.report.text import Text

# Cause and remedy of gloo's stalls.
STUDY = f"`{page('studies/gloo-stalls')}`"
# Command that compares small calls with and without the remedy, as in `make gloo-stalls`.
TEST = "collbench ab gloo-stalls --b 'scheduling=[batch]'"
FACTS = {
    LaunchFact.CORES: "cores of rank {rank}",
    LaunchFact.HOST: "host of rank {rank}",
    LaunchFact.GPU: "GPU of rank {rank}",
    LaunchFact.CHOICE: "what the library chose",
    LaunchFact.OPEN_TO: "open to the network",
    LaunchFact.TIME: "when it ran",
    LaunchFact.PLACE: "its place in the order of the launch",
    LaunchFact.OTHER_PROCESSES: "CPU time of other processes",
    LaunchFact.STEAL: "CPU time that the hypervisor took",
    LaunchFact.SEGMENTS_AGAIN: "TCP segments sent again",
    LaunchFact.SESSION: "session of the run",
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
    compared = ", ".join(FACTS[fact].format(rank="each rank") for fact in modes.compared)
    reason = f"different: {different}" if different else f"none of these goes with it: {compared}"
    return (
        f"**Launches of two kinds**, {label(modes.case)}: {slow} of {modes.launches} launches take "
        f"{format_seconds(modes.slow_s)}, {fast} take {format_seconds(modes.fast_s)}: a launch is slow with "
        f"probability {slow / modes.launches:.2f} [{modes.low:.2f} – {modes.high:.2f}], so their mean is not typical; "
        f"{reason}."
    )


def companion_words(companion: Companion) -> str:
    """Format facts as `cores of rank 0, cores of rank 1 (slow: 0; others: 0, 1)`."""
    facts = ", ".join(FACTS[fact].format(rank=rank) for fact, rank in companion.facts)
    if companion.more is not None:
        return f"{facts} ({'more' if companion.more else 'less'} where slow)"
    return f"{facts} (slow: {enumerated(companion.slow, 'or')}; others: {enumerated(companion.others, 'or')})"


def stalls_sentence(stalls: GlooStalls, with_ranks: bool = False) -> str:
    """Describe the stalls of gloo's small calls and the speed-up under SCHED_BATCH, or state that there is no stall."""
    also = stalls.disturbed and stalls.verdict != "disturbed"
    doubt = " Other programs used the cores meanwhile: calls wait for these, too." if also else ""
    return _stalls_text(stalls, with_ranks) + doubt


def _stalls_text(stalls: GlooStalls, with_ranks: bool) -> str:
    number = enumerated(stalls.ranks, "or")
    waiting, small = "", f"calls of up to {format_bytes(stalls.largest_bytes)}" + f" with {number} ranks" * with_ranks
    if stalls.cases:
        ranks = enumerated(sorted({case.world_size for case in stalls.cases}), "or")
        sizes = {case.size_bytes for case in stalls.cases}
        size_range = between(*map(format_bytes, (min(sizes), max(sizes)))) if len(sizes) > 1 else format_bytes(*sizes)
        share = f"{format_share(stalls.share)} of calls ({size_range}, {ranks} ranks)"
        waiting = f"{share} wait {format_seconds(stalls.wait_s)}"
    if stalls.factor is None:
        remedy = f"`{TEST}` tests the remedy"
        return f"**gloo may stall here**: {waiting}, possibly for a lock that gloo spins on ({STUDY}); {remedy}."
    ratio = stalls.factor
    factor = f"{ratio.value:.1f} times as fast [{ratio.low:.1f} – {ratio.high:.1f}]"
    match stalls.verdict:
        case "stalls":
            waits = f"{waiting or 'small calls wait'} for a lock that gloo spins on"
            return (
                f"**gloo stalls here**: {waits}; under SCHED_BATCH {small} are {factor}. In your program: "
                f"`os.sched_setscheduler` for its threads gloo_tcp_loop, after `init_process_group` ({STUDY})."
            )
        case "disturbed" | "both":
            disturbed = stalls.verdict == "disturbed"
            why = "other programs used the cores" if disturbed else "calls wait under SCHED_BATCH, too"
            waits = f"{waiting}; under SCHED_BATCH ({STUDY}) {small} are {factor}".removeprefix("; ")
            return f"**gloo may stall here**: {waits}. This may not be gloo's lock, because {why}."
        case "other":
            return f"**SCHED_BATCH does not help here**: {waiting}; under it {small} are {factor} ({STUDY})."
        case "harms":
            slower = between(*(f"{1 / limit:.1f}" for limit in (ratio.high, ratio.low)))
            return (
                f"**SCHED_BATCH makes it worse here**: under it {small} take {1 / ratio.value:.1f} times as long "
                f"[{slower}]. This was seen where other programs computed on the same cores ({STUDY})."
            )
        case "none":
            return f"**No stall of gloo was found here**: under SCHED_BATCH {small} are {factor}."
    doubt = f"{waiting}; under SCHED_BATCH {small} are {factor}".removeprefix("; ")
    return f"**Undecided whether gloo stalls here**: {doubt}; more launches would show it."
