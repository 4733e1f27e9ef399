"""Print the tables of nccl-tests while a run is measured: each line as soon as it and all before it are known.

In: the plan of a run, the facts of its ranks, its samples as they are kept. Out: lines on the terminal.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from bench.cli.terminal import say
from bench.model.conclusions import Analysis, Summary
from bench.model.facts import RankFacts
from bench.model.records import Case, Launch, Run, Samples
from bench.packages.interop.report import nccl_tests

# The ranks of one kind: their backend and their number.
Kind = tuple[str, int]


class LiveTables:
    """The part of a run that is known so far, and the lines that wait for more.

    A case is known when it is measured in all its launches. With a budget, which buys further launches, no case is
    known before the end. sizes: the sizes that were asked for, as the heading has them.
    """

    def __init__(self, run: Run, sizes: str | None = None) -> None:
        self._run, self._sizes = run, sizes
        self._missing = Counter(case for launch in run.plan.order for case in launch.cases)
        self._samples: dict[Case, list[Samples]] = defaultdict(list)
        self._summaries: dict[Case, Summary] = {}
        self._ranks: dict[Kind, Sequence[RankFacts]] = {}
        self._printing = self._print()
        self._awaited: set[Case | Kind] | None = next(self._printing, None)

    def joined(self, launch: Launch, ranks: Sequence[RankFacts]) -> None:
        """The ranks of a launch begin to measure. ranks: the facts of each."""
        self._ranks.setdefault((launch.backend, launch.world_size), ranks)
        self._go_on()

    def sampled(self, samples: Samples) -> None:
        """A case was measured in a launch."""
        from bench.analyze.summaries import headlines  # here: loads numpy and scipy

        case = samples.case
        self._samples[case].append(samples)
        self._missing[case] -= 1
        if self._missing[case] == 0 and self._run.plan.budget_s is None:
            (self._summaries[case],) = headlines(replace(self._run, samples=self._samples.pop(case)))
            self._go_on()

    def concluded(self, analysis: Analysis) -> None:
        """The run has ended: print all lines that are left."""
        self._summaries = {summary.case: summary for summary in analysis.summaries}
        for _ in self._printing:
            pass

    def _go_on(self) -> None:
        while self._awaited is not None and self._awaited <= {*self._summaries, *self._ranks}:
            self._awaited = next(self._printing, None)

    def _print(self) -> Iterator[set[Case | Kind]]:
        """Print all lines, and before each yield what has to be known for it."""
        for cases in nccl_tests.tables(self._run.plan.cases):
            kind = cases[0].backend, cases[0].world_size
            yield {kind}
            ranks = self._ranks.get(kind, ())
            say("\n".join(nccl_tests.heading(self._run, cases, ranks, self._summaries, self._sizes)))
            for halves in nccl_tests.rows(cases):
                yield {*halves}
                say(nccl_tests.row_line(self._run, halves, self._summaries))
            say("\n".join(nccl_tests.closing(cases, self._summaries)))
