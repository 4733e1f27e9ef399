"""Judge the trials of an equivalence proof: are parameters equal where they must be, and different where they must not?

In: a `TrialResult`. Out: a `Verdict`.
"""

import math
from collections.abc import Sequence

from bench.model.equivalence import SamplerTrial, TrialResult, Verdict

# The largest difference between equal trainings: rounding of sums taken in another order, over some dozens of steps.
# Every error in what is computed, such as a factor K or an example counted twice, makes a larger difference.
ALLOWED = {"float64": 1e-9, "float32": 1e-5}
# The smallest difference where one is expected: far above rounding, and far below what any mistake causes.
LEAST_DIFFERENCE = 1e-4
# A loss has fallen if its last value is below this share of its first. It is over all examples, so it has no noise.
FALLEN = 0.95
NOT_MEASURED = "NOT MEASURED: the ranks ended before this trial"


def verdict(result: TrialResult) -> Verdict:
    """Whether a trial is as it must be, and why."""
    trial, difference = result.trial, result.difference
    if isinstance(trial, SamplerTrial):
        text = "holds" if result.read == trial.expected else "BROKEN" if result.read else NOT_MEASURED
        return Verdict(result, text == "holds", "exactly these", text)
    # Ranks must hold the same bits.
    allowed = ALLOWED[trial.dtype] if trial.alone is not None else 0.0
    limits = {"equal": f"≤ {allowed:g}" if allowed else "0 (same bits)", "differ": f"> {LEAST_DIFFERENCE:g}"}
    limit = limits.get(trial.must, "")
    if result.untried:
        return Verdict(result, None, limit, result.untried)
    if difference is None:
        return Verdict(result, False, limit, NOT_MEASURED)
    # A mistake may keep the ranks' loss from falling; the one process makes none.
    curves = [result.alone] * (trial.alone is not None) + [result.loss] * (trial.must != "differ")
    if not math.isfinite(difference) or not all(map(fell, curves)):
        reason = "the loss did not fall" if math.isfinite(difference) else "the training diverged"
        return Verdict(result, None if trial.must == "shown" else False, limit, f"PROVES NOTHING: {reason}")
    if trial.must == "shown":
        return Verdict(result, None, limit, "shown, not required")
    if trial.must == "differ":
        differs = difference > LEAST_DIFFERENCE
        return Verdict(result, differs, limit, "differs, as it must" if differs else "DOES NOT DIFFER")
    return Verdict(result, difference <= allowed, limit, "holds" if difference <= allowed else "BROKEN")


def fell(losses: Sequence[float]) -> bool:
    """Whether training learnt something and was stable: the loss fell, and never exceeded its first value.

    Parameters that do not change would be equal too, and an unstable training makes rounding large.
    """
    if len(losses) < 2 or not all(map(math.isfinite, losses)):
        return False
    return losses[-1] < FALLEN * losses[0] and max(losses) <= losses[0]
