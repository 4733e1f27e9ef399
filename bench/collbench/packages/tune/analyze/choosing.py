"""Race the choices of all cells, prove the survivors against the default, and place the crossovers.

In: the logarithm of each launch's time, by cell and choice. Out: the choices that are still raced, the choice that each
cell tries, and whether it was shown to be faster. Every function depends only on its arguments, so an interrupted run
and a simulation on kept launches decide like an uninterrupted run.

A race compares choices only within a launch number, in which they took turns. It eliminates by a Bayes factor, which
may be evaluated after every launch (Ville's inequality), with a normal prior on the standardised difference, and
variances that are shrunk towards a common value over cells (`verdicts.moderated`). A choice is shown to be faster only
by launches after it was chosen, so luck in the race gives no rule (docs/studies/tune.md).
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np
from scipy.special import stdtr
from scipy.stats import false_discovery_control

from collbench.model.comparisons import ChangeVerdict
from collbench.model.conclusions import Interval
from collbench.packages.tune.rules import DEFAULT, Cell, Crossover, Pick, Picks, SizeRule
from collbench.stats import verdicts
from collbench.stats.intervals import Floats, launch_interval
from collbench.stats.verdicts import Levels

# Pick → number of the launch → logarithm of the mean time of its iterations, in seconds.
Logs = dict[Pick, dict[int, float]]
Times = dict[Cell, Logs]
Names = Mapping[Cell, Sequence[Pick]]
# Fewest launches before a choice can be eliminated.
FEWEST_TO_DROP = 2
# Probability that a cell's best choice is ever eliminated.
RACE_RATE = 0.05
# Variance of the standardised difference in the Bayes factor's prior: choices differ by about ten times their scatter.
PRIOR = 100.0
# False discovery rate: share of a table's rules that may be wrong on average.
WRONG_RATE = 0.01
# Fewest launches that can show that a choice is faster than the default.
FEWEST_PAIRS = 6
# Random draws for the interval of a crossover, and its percentiles; draws are seeded, so a report is reproducible.
DRAWS, ENDS = 4000, (2.5, 97.5)


# ── the race ─────────────────────────────────────────────────────────────────────────────────────
def raced(times: Times, names: Names, rounds: int) -> dict[Cell, list[Pick]]:
    """Return the choices of each cell that are left after this many rounds, with the default, ordered as in `names`."""
    alive = {cell: [DEFAULT, *(choice for choice in names[cell] if choice != DEFAULT)] for cell in names}
    for number in range(FEWEST_TO_DROP, rounds + 1):
        alive = _round(times, alive, number)
    return alive


def _round(times: Times, alive: Mapping[Cell, Sequence[Pick]], rounds: int) -> dict[Cell, list[Pick]]:
    """Return the choices that stay after a round. A choice is dropped if it is surely slower than the cell's leader.

    Evidence is the cell alone, or the cell and its neighbours together, with each launch as the mean over its cells.
    """
    measured = {cell: [choice for choice in alive[cell] if _has(times, cell, choice, rounds)] for cell in alive}
    leaders = {cell: min(left, key=lambda c: _mean(times[cell][c], rounds)) for cell, left in measured.items() if left}
    nearby = neighbours(alive)
    pairs = [(cell, choice) for cell, left in measured.items() for choice in left if choice != leaders[cell]]
    if not pairs:
        return {cell: list(left) for cell, left in alive.items()}
    own, several, until = [], [], range(rounds + 1)
    for cell, choice in pairs:
        near_cells = [_differences(times, near, choice, leaders[cell], until) for near in (cell, *nearby[cell])]
        own.append(np.array([*near_cells[0].values()]))
        means = _together([logs for logs in near_cells if len(logs) > 1])
        several.append(means if len(means) > 1 else own[-1])
    limit = np.log([len(measured[cell]) ** 2 / RACE_RATE for cell, _ in pairs])
    slower = np.array([values.mean() > 0 for values in own])
    drop_mask = slower & ((_log_factors(own) > limit) | (_log_factors(several) > limit + np.log(2)))
    dropped = {pair for pair, drops in zip(pairs, drop_mask, strict=True) if drops}
    return {cell: [choice for choice in left if (cell, choice) not in dropped] for cell, left in alive.items()}


def _log_factors(differences: Sequence[Floats]) -> Floats:
    """Return the logarithm of the Bayes factor of "they differ" over "they do not", for each series of differences.

    (1 + n g)^(-1/2) ((1 + t²/ν) / (1 + t²/((1 + n g) ν)))^((ν + 1)/2), from Rouder and others (Psychonomic Bulletin &
    Review 16, 2009) for a normal prior of variance g, with the shrunk variance and its degrees of freedom ν.
    """
    usable = np.array([len(values) > 1 for values in differences])
    mean, error, freedom = _moderated([values for values in differences if len(values) > 1])
    square = (mean / error) ** 2
    shrunk = 1 + PRIOR * np.array([len(values) for values in differences])[usable]
    gain = np.log1p(square / freedom) - np.log1p(square / (shrunk * freedom))
    factors = np.full(len(differences), -np.inf)
    factors[usable] = -np.log(shrunk) / 2 + (freedom + 1) / 2 * gain
    return factors


def _moderated(series: Sequence[Floats]) -> tuple[Floats, Floats, Floats]:
    """Return mean, standard error and degrees of freedom of each series; variances are shrunk towards a common one."""
    estimates = verdicts.paired(series)
    (part,) = estimates.parts
    return estimates.difference, np.sqrt(part.variance / part.count), part.freedom


def _pairs(cells: Iterable[Cell]) -> list[tuple[Cell, Cell]]:
    """Return each cell with the cell of the next larger size, with the same operation and ranks."""
    pairs = pairwise(sorted(cells))
    return [(cell, larger) for cell, larger in pairs if (cell.op, cell.ranks) == (larger.op, larger.ranks)]


def neighbours(cells: Iterable[Cell]) -> dict[Cell, list[Cell]]:
    """Return, for each cell, the cells of the next smaller and next larger size, with the same operation and ranks."""
    nearby: dict[Cell, list[Cell]] = {cell: [] for cell in sorted(cells)}
    for cell, larger in _pairs(nearby):
        nearby[cell].append(larger)
        nearby[larger].append(cell)
    return nearby


def picks(
    times: Times, left_after: Callable[[int], Mapping[Cell, Sequence[Pick]]], rounds: int, least_gain: float
) -> dict[Cell, Pick]:
    """Return the choice that each cell tries after a race, from its last measured round. left_after: see `raced`."""
    tried: dict[Cell, Pick] = {}
    for number in range(1, rounds + 1):
        left = left_after(number)
        choices = chosen(times, left, number, least_gain)
        tried |= {
            cell: choice
            for cell, choice in choices.items()
            if cell not in tried or any(number in logs for logs in times.get(cell, {}).values())
        }
    return tried


def chosen(times: Times, alive: Mapping[Cell, Sequence[Pick]], rounds: int, least_gain: float) -> dict[Cell, Pick]:
    """Return the choice that each cell tries: the fastest left, or a neighbour's choice within a standard error of it.

    The cell tries the default if the gain of this choice over the default is at most `least_gain`.
    """
    tried: dict[Cell, Pick] = {}
    nearby, until = neighbours(alive), range(rounds + 1)
    for cell in sorted(alive):
        left = [choice for choice in alive[cell] if _has(times, cell, choice, rounds)]
        if not left or not _has(times, cell, DEFAULT, rounds):
            tried[cell] = DEFAULT
            continue
        best = min(left, key=lambda choice: _mean(times[cell][choice], rounds))
        for near in nearby[cell]:
            other = tried.get(near)
            if other is not None and other in left and other not in {best, DEFAULT}:
                apart = np.array(list(_differences(times, cell, other, best, until).values()))
                if len(apart) > 1 and apart.mean() < apart.std(ddof=1) / np.sqrt(len(apart)):
                    best = other
                    break
        gain = -np.mean(list(_differences(times, cell, best, DEFAULT, until).values()) or [0.0])
        tried[cell] = best if gain > -np.log1p(-least_gain) else DEFAULT
    return tried


def _has(times: Times, cell: Cell, choice: Pick, rounds: int) -> bool:
    """Return whether a choice was measured in the latest round, so that it is comparable with the other choices."""
    return rounds in _logs(times, cell, choice)


def _mean(logs: Mapping[int, float], rounds: int) -> float:
    return float(np.mean([value for number, value in logs.items() if number <= rounds]))


def _logs(times: Times, cell: Cell, choice: Pick) -> dict[int, float]:
    return times.get(cell, {}).get(choice, {})


def _differences(times: Times, cell: Cell, choice: Pick, other: Pick, launches: Container[int]) -> dict[int, float]:
    """Return launch → log ratio of two choices, for those of these launches that have both."""
    a, b = _logs(times, cell, choice), _logs(times, cell, other)
    return {number: a[number] - b[number] for number in sorted(a.keys() & b.keys()) if number in launches}


# ── the proof ────────────────────────────────────────────────────────────────────────────────────
def compared(times: Times, picks: Picks, launches: Container[int]) -> dict[Cell, Floats]:
    """Return log ratios of a cell's tried choice to the default, one per launch, if there are at least FEWEST_PAIRS."""
    changed = {cell: pick for cell, pick in picks.items() if pick != DEFAULT}
    ratios = {cell: _differences(times, cell, pick, DEFAULT, launches) for cell, pick in changed.items()}
    return {cell: np.array([*logs.values()]) for cell, logs in ratios.items() if len(logs) >= FEWEST_PAIRS}


def faster(ratios: Mapping[Cell, Floats], least_gain: float) -> set[Cell]:
    """Return the cells shown to be faster than the default, by Student's t with the method of Benjamini and Hochberg.

    On average, at most a share WRONG_RATE of the rules of a table is wrong (Journal of the Royal Statistical Society
    B 57, 1995). If no choice is faster than the default, every rule is wrong: at most this share of tables has one.
    Cells whose mean gain is smaller than `least_gain` are left out.
    """
    if not ratios:
        return set()
    mean, error, freedom = _moderated([*ratios.values()])
    p = false_discovery_control(stdtr(freedom, mean / error))
    enough = (p <= WRONG_RATE) & (mean <= np.log1p(-least_gain))
    return {cell for cell, is_enough in zip(ratios, enough, strict=True) if is_enough}


def judged(ratios: Mapping[Cell, Floats], min_change: float, rate: float) -> dict[Cell, ChangeVerdict]:
    """Return a verdict per cell, faster or slower than the default, judged over all cells at once."""
    judgements = verdicts.judge(verdicts.paired([*ratios.values()]), min_change, Levels(change=rate)) if ratios else []
    return {cell: judgement.verdict for cell, judgement in zip(ratios, judgements, strict=True)}


def whole(times: Times, table: Picks, launches: Container[int]) -> tuple[Interval | None, int]:
    """Return the time over the default, for all measured cells with a rule together, and the number of its launches.

    It is the geometric mean of the cells in each launch, with Student's t over launches.
    """
    changed = {cell: pick for cell, pick in table.items() if pick != DEFAULT}
    ratios = [_differences(times, cell, pick, DEFAULT, launches) for cell, pick in changed.items()]
    means = _together([logs for logs in ratios if logs])
    return (launch_interval(np.exp(means)) if len(means) > 1 else None), len(means)


def _together(ratios: Sequence[Mapping[int, float]]) -> Floats:
    """Return the mean over cells in each launch that all of these cells have."""
    common = sorted(set.intersection(*map(set, ratios))) if ratios else []
    return np.array([np.mean([logs[number] for logs in ratios]) for number in common])


# ── crossovers ───────────────────────────────────────────────────────────────────────────────────
def crossovers(times: Times, table: Picks) -> list[Crossover]:
    """Return the sizes at which the choice changes. Times are straight lines between two sizes: latency and bandwidth.

    If the lines do not cross, the faster choice applies up to the other size; next to the default, up to its own.
    """
    crossings = []
    for cell, following in _changes(table):
        below, above = table[cell], table[following]
        ends = [_seconds_apart(times, each, below, above) for each in (cell, following)]
        low, high = float(cell.size), float(following.size)
        kept = high if below == DEFAULT else low
        places = np.full(DRAWS, kept)
        if all(end is not None for end in ends):
            dice = np.random.default_rng(0)
            first, last = (dice.normal(*end, DRAWS) if end is not None else places for end in ends)
            with np.errstate(divide="ignore", invalid="ignore"):
                places = low + (high - low) * np.clip(-first / (last - first), 0, 1)
            elsewhere = kept if DEFAULT in {below, above} else np.where(first + last > 0, low, high)
            places = np.where((first < 0) & (last > 0), places, elsewhere)
        at = float(np.median(places))
        crossings.append(Crossover(cell.op, cell.ranks, below, above, at, *map(float, np.percentile(places, ENDS))))
    return crossings


def _changes(table: Picks) -> list[tuple[Cell, Cell]]:
    """Return the neighbouring cells with different choices."""
    return [(cell, larger) for cell, larger in _pairs(table) if table[cell] != table[larger]]


def _seconds_apart(times: Times, cell: Cell, below: Pick, above: Pick) -> tuple[float, float] | None:
    """Return mean and standard error of `below` − `above`, in seconds, over all launches that have both."""
    a, b = _logs(times, cell, below), _logs(times, cell, above)
    common = sorted(a.keys() & b.keys())
    if len(common) < 2:
        return None
    before_s, after_s = (np.exp([logs[number] for number in common]) for logs in (a, b))
    scatter_s = max(float(np.std(before_s - after_s, ddof=1)), verdicts.SMALLEST_SCATTER * float(before_s.mean()))
    return float(np.mean(before_s - after_s)), float(scatter_s / np.sqrt(len(common)))


def rules_of(table: Picks, places: Sequence[Crossover]) -> list[SizeRule]:
    """Return the rules of a table. The default applies beyond the measured sizes, and if no gain was shown.

    Two choices are divided at their crossover; a choice and the default at the interval limit nearer to the choice.
    """
    at = dict(zip(_changes(table), places, strict=True))
    larger_of, smaller_of = dict(_pairs(table)), {larger: cell for cell, larger in _pairs(table)}
    rules: list[SizeRule] = []
    for cell, choice in sorted(table.items()):
        if choice == DEFAULT:
            continue
        low = high = cell.size
        if (smaller := smaller_of.get(cell)) and (place := at.get((smaller, cell))):
            low = min(cell.size, int(place.at if place.below != DEFAULT else place.high) + 1)
        if larger := larger_of.get(cell):
            place = at.get((cell, larger))
            edge = larger.size if place is None else int(place.at if place.above != DEFAULT else place.low)
            high = min(max(cell.size, edge), larger.size - 1)
        last = rules[-1] if rules else None
        if last and (last.op, last.ranks, last.choice, last.high) == (cell.op, cell.ranks, choice, low - 1):
            rules[-1] = SizeRule(cell.op, cell.ranks, last.low, high, choice)
        else:
            rules.append(SizeRule(cell.op, cell.ranks, low, high, choice))
    return rules
