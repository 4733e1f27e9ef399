"""Wait for several launches at once, in one thread, and let the ranks of two sides take turns.

In: generators that measure. Each yields the connections that it waits for, and is sent those that have a message (or
have ended). Out: their results. `Turns` decides which side's ranks may measure now, while the ranks of the other side
sleep until a message comes. Sends no messages itself: `supervisor` sends them.

There are no threads, because multiprocessing manages child processes from one thread only, and Ctrl-C arrives in the
main thread.
"""

import contextlib
import random
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any, TypeVar

from collbench.machine import interrupts

T = TypeVar("T")
# Yields the connections that it waits for, and is sent those that are ready; its result is a T.
Measuring = Generator[Collection[Any], Collection[Any], T]
# Polling interval, in seconds. Ctrl-C is answered within it.
LOOK_EVERY_S = 0.25


def drive(*generators: Measuring[T], looked: Callable[[], None] = lambda: None) -> list[T]:
    """Run generators side by side until all have ended; return their results, in order.

    All generators are resumed as soon as one of them has something to read, or after LOOK_EVERY_S. After an error, and
    after Ctrl-C, all are closed. looked: called before each wait.
    """
    results: dict[int, T] = {}
    waits: dict[int, Collection[Any]] = dict.fromkeys(range(len(generators)), ())
    ready: Any = None  # the first value that a generator is sent
    with contextlib.ExitStack() as stack:
        for generator in generators:
            stack.callback(generator.close)
        while True:
            interrupts.raise_if_noted()
            for number in list(waits):
                try:
                    waits[number] = generators[number].send(ready)
                except StopIteration as ended:
                    results[number] = ended.value
                    del waits[number]
            if not waits:
                return [results[number] for number in range(len(generators))]
            looked()
            ready = wait([connection for several in waits.values() for connection in several], LOOK_EVERY_S)


@dataclass(frozen=True, slots=True)
class Turn:
    """The turns of one side, for the code that watches its ranks."""

    turns: "Turns"
    side: str

    def ask(self, granted: Callable[[], None]) -> None:
        """Report that all ranks of the side wait: its turn is over, and `granted` is called when its next turn begins.

        The next turn may begin at once.
        """
        self.turns.ask(self.side, granted)

    def leave(self) -> None:
        """Report that the ranks have ended: the side neither waits nor has the turn until new ranks ask."""
        self.turns.leave(self.side)


class Turns:
    """Lets at most one side at a time measure, and only while the ranks of every other side wait.

    So nothing is measured while a side starts ranks, fills buffers or checks results. Turns come in rounds with one
    turn per side, in a new random order each round, from `seed`. A side that has ended has no more turns.
    """

    def __init__(self, sides: Sequence[str], seed: str) -> None:
        self._sides, self._dice = tuple(sides), random.Random(seed)
        self._alive, self._waiting = set(sides), dict[str, Callable[[], None]]()
        self._next: list[str] = []
        self._holder: str | None = None

    def of(self, side: str) -> Turn:
        """Return the turns of one side."""
        return Turn(self, side)

    def ask(self, side: str, granted: Callable[[], None]) -> None:
        """See `Turn.ask`."""
        self.leave(side)
        self._waiting[side] = granted
        self._grant()

    def leave(self, side: str) -> None:
        """See `Turn.leave`. This grants no turn to any side: the side may start new ranks."""
        self._waiting.pop(side, None)
        if self._holder == side:
            self._holder = None

    def end(self, side: str) -> None:
        """Report that the side has measured everything: the other sides need not wait for it."""
        self.leave(side)
        self._alive.discard(side)
        self._grant()

    def _grant(self) -> None:
        if self._holder is not None or not self._alive or self._alive != self._waiting.keys():
            return
        while self._holder not in self._alive:
            if not self._next:
                self._next = self._dice.sample(self._sides, len(self._sides))
            self._holder = self._next.pop()
        self._waiting.pop(self._holder)()


def measure_in_turns(
    sides: Sequence[str], seed: str, at_once: bool, measure: Callable[[str, Turn], Measuring[None]]
) -> None:
    """Measure one launch per side, in turns. at_once: False if ranks of different sides cannot be alive together."""

    def launch(side: str, turns: Turns) -> Measuring[None]:
        yield from measure(side, turns.of(side))
        turns.end(side)

    for together in [sides] if at_once else [[side] for side in sides]:
        turns = Turns(together, seed)
        drive(*(launch(side, turns) for side in together))
