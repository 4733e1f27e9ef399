"""Decide how many iterations of a case to measure, block by block: the only feedback loop of the suite.

In: the duration of one call, then the timings of all ranks for each block. Out: the next block, or the reason why
measuring stopped. Every rank applies the same rules to the same gathered numbers, so all ranks decide the same without
a vote; no clock is read here.

A launch visits its cases in rounds, one block of each case per round, so that the blocks of a case are spread over the
launch: times stay in one mode for some tens of iterations, and one contiguous series can lie within one mode
(docs/method.md, "Order, warm-up, stopping").
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from collbench.model.records import Json, Sampling, Timings
from collbench.planning.footprint import FEWEST_ITERATIONS, PATIENCE
from collbench.stats.intervals import FEWEST_BLOCKS, within_launch

# The time for a case is spent in this many rounds, unless a block would be longer than LONGEST_BLOCK_S: then in more.
# With turns, blocks are at most LONGEST_TURN_S: passing the turn on takes 5 to 10 ms.
ROUNDS, LONGEST_BLOCK_S, LONGEST_TURN_S = 5, 0.04, 0.1
# Warm-up before each block: this many calls, but no longer than AGAIN_S; none if one call takes at least LONG_CALL_S.
# With turns, calls longer than AGAIN_S have none: the case ran less than a second ago, and the sides are equally cold.
AGAIN, AGAIN_S, LONG_CALL_S = 2, 0.005, 0.05
# Blocks of warm-up of the cases that a launch measures first; the first blocks are slow, and predict badly how many
# calls fit.
WARMUPS = 3
# Looks in a row at which the interval must be as narrow as requested: at a single look it may be so by chance.
LOOKS = 2
UNBOUNDED = 2**62
# Iterations with dispatching in their device time are left out if they are at most this share of all iterations.
MOST_LEFT_OUT = 0.5


@dataclass(frozen=True, slots=True)
class Block:
    """The next iterations of a case in a row: first `warmup`, which are kept but not used, then `timed`."""

    warmup: int
    timed: int

    @property
    def total(self) -> int:
        return self.warmup + self.timed


class Sampler:
    """The blocks of one case in one launch: `block` is the next block until `stopped_by` is set."""

    def __init__(
        self,
        sampling: Sampling,
        # Number of iterations until an operation is back at its first round. Blocks and warm-ups are whole cycles.
        cycle: int = 1,
        # Upper limit of the iterations of the warm-up, and of the iterations after it.
        most: int = UNBOUNDED,
        # Time of one call that was made before, on the slowest rank.
        first_s: float = 0.0,
        # True if each iteration of a fixed number is a block of its own.
        singly: bool = False,
        # Time for the calls if sides take turns: the number of blocks follows from it, so that it is equal on all
        # sides. None if measurements decide.
        in_turns_s: float | None = None,
        # Least time of the warm-up, if there is one.
        warm_s: float = 0.0,
    ) -> None:
        fixed = min(sampling.iterations, most) if sampling.iterations else None
        self._sampling = replace(
            sampling,
            max_iterations=min(sampling.max_iterations, most),
            warmup=min(sampling.warmup, most),
            seconds_per_case=sampling.seconds_per_case if in_turns_s is None else in_turns_s,
        )
        self._cycle, self._one_s, self._in_turns = cycle, first_s, in_turns_s is not None
        self._elapsed_s, self._narrow = 0.0, 0
        self._warm_s, self._warms = warm_s, bool(warm_s and sampling.warmup and sampling.warmup_s)
        self._warmups = list[Timings]()
        # Each block, with a mask of its iterations that have dispatching in their device time, if that is known.
        self._blocks = list[tuple[Timings, NDArray[np.bool_] | None]]()
        self.stopped_by: str | None = None
        self._fixed: list[int] | None = None  # the sizes of the blocks of a fixed number of iterations
        if fixed is not None:
            cycles = max(1, fixed // cycle)
            count = fixed if singly else min(cycles, FEWEST_BLOCKS) if fixed >= FEWEST_ITERATIONS else 1
            self._fixed = [cycle * (cycles * (i + 1) // count - cycles * i // count) for i in range(count)]
        warmup = math.ceil(_fitting(self._sampling.warmup, self._sampling.warmup_s, first_s) / cycle) * cycle
        self.block = Block(warmup, 0) if warmup else self._next()

    def add(self, timings: Timings, elapsed_s: float, dispatch_bound: NDArray[np.bool_] | None = None) -> None:
        """Add the requested block, with the timings of all ranks, and decide on the next block.

        elapsed_s: time of the block on the slowest rank, with everything around the calls. dispatch_bound: iterations
        whose device time includes dispatching on any rank. Dispatching is not part of the call, so these iterations are
        left out on all ranks, and other iterations replace them; but if they are the majority, the case is bound by
        dispatching, and they are kept and counted. The rule does not depend on the times.
        """
        self._one_s = elapsed_s / self.block.total
        if not self.block.timed:
            self._warm_s -= elapsed_s
        if self.block.warmup:
            self._warmups.append(timings.iterations(slice(None, self.block.warmup)))
        if self.block.timed:
            bound = None if dispatch_bound is None else dispatch_bound[self.block.warmup :]
            if bound is not None and self._cycle > 1:  # a cycle must have all its rounds
                bound = np.repeat(bound.reshape(-1, self._cycle).any(axis=1), self._cycle)
            self._blocks.append((timings.iterations(slice(self.block.warmup, None)), bound))
            self._elapsed_s += elapsed_s
            self.stopped_by = self._decide()
        if self.stopped_by is None:
            self.block = self._next()

    @property
    def warmup(self) -> Timings | None:
        """Return the first warm-up and the warm-ups before blocks, in their order; None without a warm-up."""
        return _joined(self._warmups) if self._warmups else None

    @property
    def timed(self) -> Timings:
        """Return all blocks, in their order, without the iterations that are left out."""
        return _joined(self._kept)

    @property
    def timed_blocks(self) -> int:
        """Return the number of blocks whose times are kept."""
        return len(self._blocks)

    @property
    def _kept(self) -> list[Timings]:
        omit = self.left_out is not None and self.dispatch_bound == 0
        parts = [block.iterations(~bound) if omit and bound is not None else block for block, bound in self._blocks]
        return [part for part in parts if len(part.duration_ns)]

    @property
    def left_out(self) -> int | None:
        """Return the number of iterations, in whole cycles, left out because of dispatching; None if unknown."""
        bound, share = self._bound()
        return bound if bound is None or share <= MOST_LEFT_OUT else 0

    @property
    def dispatch_bound(self) -> int | None:
        """Return the number of iterations, in whole cycles, kept in spite of dispatching; None if unknown."""
        bound, share = self._bound()
        return bound if bound is None or share > MOST_LEFT_OUT else 0

    def _bound(self) -> tuple[int | None, float]:
        """Return the number of iterations with dispatching in their device time, None if unknown; and their share."""
        masks = [bound for _, bound in self._blocks if bound is not None]
        number = sum(int(bound.sum()) for bound in masks)
        return (number, number / sum(map(len, masks))) if masks else (None, 0.0)

    def _decide(self) -> str | None:
        """Return the reason to stop, "precision", "time" or "count"; None to continue."""
        sampling, rounds, done = self._sampling, len(self._blocks), self._done
        if self._fixed is not None:
            return "count" if rounds == len(self._fixed) else None
        if done + self._cycle > sampling.max_iterations:
            return "count"
        if len(self._kept) < FEWEST_BLOCKS:
            return None
        if self._in_turns:
            enough = rounds >= round(sampling.seconds_per_case / self._block_s)
            return "time" if enough or self._elapsed_s > PATIENCE * sampling.seconds_per_case else None
        if done < FEWEST_ITERATIONS and self._elapsed_s < PATIENCE * sampling.seconds_per_case:
            return None
        timed = self.timed
        if sampling.relative_error is not None:
            width = within_launch(timed.slowest_s, timed.blocks).relative_half_width
            self._narrow = self._narrow + 1 if width <= sampling.relative_error else 0
            if self._narrow == LOOKS:
                return "precision"
        # The last block may end a little late rather than be left out.
        return "time" if self._elapsed_s + self._block_s / 2 > sampling.seconds_per_case else None

    @property
    def _done(self) -> int:
        return sum(len(block.duration_ns) for block, _ in self._blocks) - (self.left_out or 0)

    def _next(self) -> Block:
        if self._warms and len(self._warmups) < WARMUPS:
            fits = max(1.0, min(self._warm_s / self._one_s, self._sampling.max_iterations))
            return Block(math.ceil(fits / self._cycle) * self._cycle, 0)
        if self._fixed is not None:
            return Block(self._again(), self._fixed[len(self._blocks)])
        done = self._done
        wanted = self._block_s / self._one_s if self._one_s else self._sampling.max_iterations / ROUNDS
        if self._again():  # few blocks of two calls need less warm-up than many of one call
            wanted = max(FEWEST_ITERATIONS / FEWEST_BLOCKS, wanted)
        cycles = max(1, min(int(wanted / self._cycle), (self._sampling.max_iterations - done) // self._cycle))
        return Block(self._again(), cycles * self._cycle)

    @property
    def _block_s(self) -> float:
        longest_s = LONGEST_TURN_S if self._in_turns else LONGEST_BLOCK_S
        return min(self._sampling.seconds_per_case / ROUNDS, longest_s)

    def _again(self) -> int:
        """Return the warm-up iterations before a block: whole cycles, so that a block begins with the first round."""
        if self._sampling.warmup == 0 or self._one_s >= (AGAIN_S if self._in_turns else LONG_CALL_S):
            return 0
        return self._cycle if self._cycle > 1 else _fitting(AGAIN, AGAIN_S, self._one_s)


def _joined(blocks: Sequence[Timings]) -> Timings:
    """Concatenate blocks of one case."""
    arrays: Json = {name: np.concatenate([block.arrays[name] for block in blocks]) for name in blocks[0].arrays}
    inner = {name: np.concatenate([block.inner_ns[name] for block in blocks]) for name in blocks[0].inner_ns}
    sizes = tuple(len(block.duration_ns) for block in blocks)
    shares = tuple(share for block in blocks for share in block.foreign_cpu)
    return replace(blocks[0], **arrays, inner_ns=inner, blocks=sizes, foreign_cpu=shares)


def _fitting(count: int, seconds: float, one_s: float) -> int:
    """Return how many iterations of `one_s` fit the time: at least one and at most `count`, which may be 0."""
    return min(count, max(1, math.floor(seconds / one_s))) if one_s > 0 else count
