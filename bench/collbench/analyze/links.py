"""Find slow ranks and slow links in the matrix of times of pairwise exchanges.

In: samples of `pairwise`. Out: a `Matrix` of times; findings of kind "slow rank", "slow node" and "slow link"; and
notices on cases that cannot be diagnosed. With the time t_ij of ranks i and j,

    log t_ij = μ + e_i + e_j + r_ij,      Σ e_i = 0,      fitted with a Cauchy loss

so that one slow link does not raise e_i of its ranks. e_i is the effect of rank i on all its links, r_ij the effect of
a link beyond its two ranks. Three ranks have three links for three unknowns: nothing is left to distinguish a slow link
from a slow rank.

The fit is repeated for each launch; an effect counts if it is 10 % or more and a t-test over the launches rejects 0
after Bonferroni's correction over all ranks and links. Each launch places its ranks anew: if links differ by chance by
10 % between launches, tests over groups of iterations named a link in 20 to 70 % of runs. With fewer than three
launches only such groups are left, and the finding states that it is about these launches only. If more than half of a
host's ranks, or of the links between two hosts, are slow, the finding names the host, or the link between the two
hosts, instead.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
from scipy.special import stdtr

from collbench.analyze.sessions import Hosts, hosts, in_words
from collbench.catalog.collectives import OPERATIONS, cycle
from collbench.catalog.subgroups import rounds
from collbench.model.conclusions import Finding, FindingKind, Matrix
from collbench.model.notices import Kind, Notice, Value
from collbench.model.projection import grouped
from collbench.model.records import Case, Run, Samples
from collbench.stats.intervals import Floats

FEWEST_RANKS = 4
LEVEL = 0.05
SMALLEST_EFFECT = 0.10
# With fewer launches, groups of iterations replace them: several for the t-test, each large enough for a mean.
FEWEST_LAUNCHES, GROUPS = 3, 6
# Ranks up to which a dense matrix is as fast as a sparse one (4 ranks: 4 ms against 28 ms; 128: 1.9 s against 0.5 s).
LARGEST_DENSE = 64
# Least standard deviation: effects that agree to the last digits, as on virtual GPUs, are not more certain than this.
LEAST_SCATTER = 1e-9
# Scale of the Cauchy loss on logarithms: links that deviate by more than about 5 % lose weight as outliers.
LOSS_SCALE = 0.05


def matrices(run: Run) -> list[Matrix]:
    """Return one matrix of mean times for each pairwise case, over all its launches."""
    return [
        Matrix(case, np.mean(np.concatenate([_pair_series(samples) for samples in launches]), axis=0))
        for case, launches in _by_case(run).items()
    ]


_PAIRWISE = "pairwise on {backend}, {ranks:count rank}, {size_bytes:bytes}"
FEW_RANKS = Kind(
    "few-ranks", f"{_PAIRWISE}: with fewer than {{fewest}} ranks a slow rank and a slow link look the same"
)
FEW_ITERATIONS = Kind("few-iterations", f"{_PAIRWISE}: too few iterations to distinguish chance from a slow link")


def slow_ranks_and_links(run: Run) -> tuple[list[Finding], list[Notice]]:
    """Return the findings, and notices on cases without a diagnosis."""
    findings: list[Finding] = []
    silent: list[Notice] = []
    places = hosts(run)
    for case, launches in _by_case(run).items():
        if case.world_size < FEWEST_RANKS:
            silent.append(_about(FEW_RANKS, case, fewest=FEWEST_RANKS))
            continue
        series = [_pair_series(samples) for samples in launches]
        parts = series
        if len(series) < FEWEST_LAUNCHES:
            parts = [part for times in series for part in np.array_split(times, min(GROUPS, max(1, len(times) // 2)))]
        groups = [np.asarray(np.mean(part, axis=0)) for part in parts if len(part)]
        if len(groups) < 3:
            silent.append(_about(FEW_ITERATIONS, case))
            continue
        effects = np.array([fit(group) for group in groups])
        placed = places.get((case.backend, case.world_size), {})
        few = len(series) if len(series) < FEWEST_LAUNCHES else None
        findings += _by_hosts(case, few, _findings(case, few, effects), placed)
    return findings, silent


def fit(times_s: Floats) -> Floats:
    """Fit log effects: n for the ranks (relative to the median rank), then r_ij for i < j. times_s: shape (n, n)."""
    from scipy.optimize import least_squares  # imported here: slow to load
    from scipy.sparse import csr_array

    n = len(times_s)
    i, j = np.triu_indices(n, 1)
    logs = np.log(times_s[i, j])
    # The residuals are linear; the residual of a link depends on three unknowns, the last residual is Σ e_i.
    links, ranks = np.arange(len(logs)), np.arange(n)
    places = (
        np.concatenate([links, links, links, np.full(n, len(logs))]),
        np.concatenate([0 * i, 1 + i, 1 + j, 1 + ranks]),
    )
    slopes = csr_array((np.append(np.full(3 * len(logs), -1.0), np.ones(n)), places), shape=(len(logs) + 1, n + 1))
    jacobian = slopes if n > LARGEST_DENSE else slopes.toarray()

    def residuals(x: Floats) -> Floats:
        return np.append(logs - x[0] - x[1 + i] - x[1 + j], x[1:].sum())

    start = np.concatenate([[np.median(logs)], np.zeros(n)])
    solution = least_squares(residuals, start, jac=lambda _: jacobian, loss="cauchy", f_scale=LOSS_SCALE).x
    rank_effects = solution[1:] - np.median(solution[1:])
    return np.concatenate([rank_effects, residuals(solution)[:-1]])


def _by_case(run: Run) -> dict[Case, list[Samples]]:
    paired = (samples for samples in run.samples if OPERATIONS[samples.case.op].paired)
    timed = (samples for samples in paired if samples.failure is None and samples.timed is not None)
    return grouped(timed, lambda samples: samples.case)


def _pair_series(samples: Samples) -> Floats:
    """Return exchange times in seconds, shape (cycles, ranks, ranks): every pair exchanges once per cycle."""
    assert samples.timed is not None  # noqa: S101 - the caller selects such
    n, period = samples.case.world_size, cycle(samples.case)
    duration = samples.timed.duration_ns
    # The verifying calls before the warm-up are one whole cycle; the warm-up may end within a cycle.
    first = len(samples.warmup.duration_ns) if samples.warmup is not None else 0
    skip = -first % period
    cycles = (len(duration) - skip) // period
    series = np.full((cycles, n, n), np.nan)
    for position, pairs in enumerate(rounds(n)):
        rows = duration[skip + position : skip + cycles * period : period]
        a, b = np.array(pairs).T
        series[:, a, b] = series[:, b, a] = np.maximum(rows[:, a], rows[:, b]) / 1e9
    return series


SLOW_RANK = Kind(
    "slow-rank",
    "rank {rank} is slow: all its exchanges take {share:share} longer (p = {p:.1g}{launches:here of}; "
    f"{_PAIRWISE})",
)
SLOW_LINK = Kind(
    "slow-link",
    "link {link:link} is slow: {share:share} more than its two ranks explain (p = {p:.1g}{launches:here of}; "
    f"{_PAIRWISE})",
)


def _findings(case: Case, few: int | None, effects: Floats) -> list[Finding]:
    """Return findings on single ranks and links. effects: one row from `fit` per launch or group of iterations.

    few: number of launches, if there are too few to be the unit.
    """
    n = case.world_size
    mean = effects.mean(axis=0)
    error = np.maximum(effects.std(axis=0, ddof=1), LEAST_SCATTER) / np.sqrt(len(effects))
    p = np.minimum(stdtr(len(effects) - 1, -mean / error) * effects.shape[1], 1.0)
    excess = np.expm1(mean)
    findings = []
    links = zip(*(side.tolist() for side in np.triu_indices(n, 1)), strict=True)
    ends = [*((rank, None) for rank in range(n)), *links]
    for (rank, other), share, chance in zip(ends, excess.tolist(), p.tolist(), strict=True):
        if chance > LEVEL or share < SMALLEST_EFFECT:
            continue
        about = partial(_about, case=case, launches=few, share=share, p=chance)
        if other is None:
            kind, subject, why = FindingKind.SLOW_RANK, f"rank {rank}", about(SLOW_RANK, rank=rank)
            finding = Finding(kind, subject, why, (case,), rank=rank, ranks=(rank,), share=share, p=chance)
        else:
            kind, subject, link = FindingKind.SLOW_LINK, f"link {rank}–{other}", (rank, other)
            why = about(SLOW_LINK, link=link)
            finding = Finding(kind, subject, why, (case,), ranks=link, link=link, share=share, p=chance)
        findings.append(finding)
    return findings


def _about(kind: Kind, case: Case, **values: Value) -> Notice:
    """Make a notice on an exchange between pairs of ranks."""
    where: dict[str, Value] = {"backend": case.backend, "ranks": case.world_size, "size_bytes": case.size_bytes}
    return Notice(kind, {**where, **values}, (case.key,))


def _by_hosts(case: Case, few: int | None, findings: list[Finding], placed: Hosts) -> list[Finding]:
    """Merge findings on more than half of a host's ranks, or of the links between two hosts, into one finding."""
    if len(placed) < 2:
        return findings
    host_of = {rank: host for host, ranks in placed.items() for rank in ranks}
    together = grouped(findings, lambda f: (f.kind, tuple(sorted({host_of[rank] for rank in f.ranks}))))
    for (kind, names), group in together.items():
        sizes = [len(placed[name]) for name in names]
        if (kind is FindingKind.SLOW_RANK) == (len(names) == 1) and len(group) > max(1, np.prod(sizes) / 2):
            findings = [finding for finding in findings if finding not in group]
            findings.append(_in_common(case, few, names, group))
    return findings


SLOW_NODE = Kind(
    "slow-node",
    "node {node} ({members}) is slow: all exchanges of these ranks take {share:share} longer (p = {p:.1g} or less "
    f"each{{launches:here of}}; {_PAIRWISE})",
)
SLOW_BETWEEN_NODES = Kind(
    "slow-between-nodes",
    "link {link:link} is slow: {pairs} pairs of ranks across it take {share:share} more than their ranks explain "
    f"(p = {{p:.1g}} or less each{{launches:here of}}; {_PAIRWISE})",
)


def _in_common(case: Case, few: int | None, names: Sequence[str], group: Sequence[Finding]) -> Finding:
    """Make the finding on one host, or on the link of two hosts. Its p: the largest p-value of its ranks or links."""
    ranks = tuple(sorted({rank for finding in group for rank in finding.ranks}))
    share, p = float(np.median([f.share or 0.0 for f in group])), max(f.p or 0.0 for f in group)
    about = partial(_about, case=case, launches=few, share=share, p=p)
    if len(names) == 1:
        kind, subject = FindingKind.SLOW_NODE, f"node {names[0]}"
        why = about(SLOW_NODE, node=names[0], members=in_words(ranks))
    else:
        kind, subject = FindingKind.SLOW_LINK, f"link {names[0]}–{names[1]}"
        why = about(SLOW_BETWEEN_NODES, link=tuple(names), pairs=len(group))
    return Finding(kind, subject, why, (case,), ranks=ranks, share=share, p=p)
