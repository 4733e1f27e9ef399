"""Say what joining a group changed in a process for good, and what each further group costs it.

In: an `Observed` of each rank. Out: sentences. A process in which nothing changed for good gives none.
"""

import signal
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from bench.init.model import BEFORE, CALLED, GROUPS, LEFT, STAGES, Observed
from bench.model.units import counted, format_rounded_bytes

# Less memory than this stays behind or comes with each group in any process that allocates.
LEFT_BYTES, GROUP_BYTES = 50 * 2**20, 2**20


def remarks(ranks: Sequence[Observed]) -> list[str]:
    """The sentences, on all ranks that they hold for."""
    of_text: dict[str, list[int]] = {}
    for observed in ranks:
        for text in _of_rank(observed):
            of_text.setdefault(text, []).append(observed.rank)
    return [
        text if len(who) == len(ranks) else f"{'rank' if len(who) == 1 else 'ranks'} {', '.join(map(str, who))}: {text}"
        for text, who in of_text.items()
    ]


def _of_rank(observed: Observed) -> Iterator[str]:
    stages, before, after = observed.stages, observed.stages[BEFORE], observed.stages[LEFT]
    for name in STAGES[1:]:
        if lost := set(before.affinity) - set(stages[name].affinity):
            left = ", ".join(map(str, stages[name].affinity))
            stays = (
                "" if name == LEFT else " and stays so" if lost <= set(before.affinity) - set(after.affinity) else ""
            )
            yield (
                f"the process may use fewer cores {name}{stays}: {left} of {len(before.affinity)}; threads that it "
                "starts from then on inherit that"
            )
            break
    if threads := more(before.threads, after.threads):
        yield f"{counted(sum(threads.values()), 'thread')} left after the end: {_named(threads)}"
    if files := more(before.files, after.files):
        yield f"{counted(sum(files.values()), 'open file')} left after the end: {_named(files)}"
    policies = Counter(stages[GROUPS].policies) - Counter(before.policies)
    if changed := {name: count for name, count in policies.items() if name != "normal"}:
        yield f"threads have another scheduling than usual: {_named(changed)}"
    if set(after.variables) != set(before.variables):
        names = sorted(set(after.variables) ^ set(before.variables))
        yield f"environment variables were set or removed: {', '.join(names)}"
    if handled := sorted(set(after.signals) - set(before.signals)):
        yield f"handlers of signals stay: {', '.join(_signal(number) for number in handled)}"
    each = (stages[GROUPS].memory_bytes - stages[CALLED].memory_bytes) / max(1, observed.groups)
    if each > GROUP_BYTES:
        yield f"memory grows by {format_rounded_bytes(round(each))} with each further group"
    if (kept := after.memory_bytes - before.memory_bytes) > LEFT_BYTES:
        yield f"{format_rounded_bytes(kept)} of memory stay after the end"


def more(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Name → how many more of it there are."""
    return dict(Counter(after) - Counter(before))


def _named(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
