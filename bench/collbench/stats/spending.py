"""Spend an error rate over several looks at growing data, so that all looks together have the error rate of one test.

In: for each look, the share of the budget that is spent and the information by then. Out: the nominal level of each
look. Lan & DeMets, "Discrete sequential boundaries for clinical trials", Biometrika 70, 1983: the error spent by a look
is fixed by a function of the budget, so that neither number nor times of the looks need to be known before.
"""

import functools
import math

import numpy as np
from scipy.special import ndtr

from collbench.stats.intervals import Floats

# Points of the grid on which densities are integrated. With these, levels agree with published ones to 4 digits.
GRID = 601
# Density beyond this many standard deviations is left out.
WIDEST = 8.0
# Halvings of the interval in which a boundary lies.
HALVINGS = 40


def spent(share: float) -> float:
    """Return the part of the error rate to spend until this share of the budget is spent: its square.

    Kim & DeMets, Biometrika 74, 1987. Large differences still end `ab` early; small ones and SAME need all pairs.
    """
    return min(max(share, 0.0), 1.0) ** 2


@functools.cache
def levels(shares: tuple[float, ...], information: tuple[float, ...], error_rate: float, two_sided: bool) -> Floats:
    """Return the nominal level of each look: p-values up to it are significant at this look.

    shares: share of the budget spent at each look, ascending. information: its amount at each look, in any unit that
    grows with the inverse variance, such as the number of pairs. two_sided: the test is two-sided, not one-sided. The
    looks have the joint distribution of a Brownian motion, integrated look by look (Armitage, McPherson & Rowe, Journal
    of the Royal Statistical Society A 132, 1969).
    """
    nominal: list[float] = []
    before, density, points, paid = 0.0, np.ones(1), np.zeros(1), 0.0
    for share, time in zip(shares, np.asarray(information, dtype=float) / information[-1], strict=True):
        due, root, step = error_rate * spent(share) - paid, math.sqrt(time), math.sqrt(time - before)

        def crossed(boundary: float, density: Floats = density, points: Floats = points, step: float = step) -> float:
            """Return the probability of being beyond the boundary now, and not at any look before."""
            beyond = ndtr((points - boundary) / step)
            if two_sided:
                beyond = beyond + ndtr((-boundary - points) / step)
            return float(density @ beyond)

        low, boundary = 0.0, WIDEST * root
        for _ in range(HALVINGS):
            middle = (low + boundary) / 2
            low, boundary = (middle, boundary) if crossed(middle) > due else (low, middle)
        nominal.append(float(ndtr(-boundary / root)) * (2 if two_sided else 1))
        paid += crossed(boundary)
        grid = np.linspace(-boundary if two_sided else -WIDEST * root, boundary, GRID)
        weights = np.full(GRID, grid[1] - grid[0])  # of the trapezoidal rule
        weights[[0, -1]] /= 2
        kernel = np.exp(-0.5 * ((grid[:, None] - points) / step) ** 2) / (step * math.sqrt(2 * math.pi))
        density, points, before = kernel @ density * weights, grid, time
    return np.array(nominal)
