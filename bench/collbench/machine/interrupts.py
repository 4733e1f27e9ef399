"""Handle Ctrl-C, SIGTERM and the like: note them at once, and during a measurement raise them only at safe points.

An exception between any two instructions is lost in code that cannot pass it on (callbacks of weak references, Rust),
or leaves a module that is being imported locked for good. Of 220 interrupts in the first 60 ms of a run, one was lost
and one made the run hang.
"""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

# A signal more than this many seconds after the first one raises at once, wherever the program is.
PATIENCE_S = 1.0
# Signals by which terminals and batch systems end a run or announce its end (sbatch --signal).
OTHERS = (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@dataclass(slots=True)
class _State:
    """The state of the signals that this process answers."""

    # True if a signal has come since `answer` or the last exception of `raise_if_noted`.
    noted: bool = False
    # True within `deferred`: only `raise_if_noted` raises.
    deferred: bool = False


_state = _State()


def answer(*signals: signal.Signals, once: bool = False) -> None:
    """From now on, raise KeyboardInterrupt on these signals. once: only on the first signal; launchers send several."""
    came: list[float] = []

    def interrupt(*_: object) -> None:
        came.append(time.monotonic())
        if once and len(came) > 1:
            return
        _state.noted = True
        if not _state.deferred or came[-1] - came[0] > PATIENCE_S:
            raise KeyboardInterrupt

    _state.noted = False
    # Hide the traceback from code that cannot pass an interrupt on: the signal is noted, and raised later.
    sys.unraisablehook = lambda lost: None if lost.exc_type is KeyboardInterrupt else sys.__unraisablehook__(lost)
    _handle(interrupt, signals)


def asked_to_end() -> list[signal.Signals]:
    """Return the signals that end a run in an orderly way: SIGTERM, and those of OTHERS that are not ignored.

    A shell's background processes ignore Ctrl-C, processes under `nohup` ignore SIGHUP, and both continue to do so.
    """
    return [signal.SIGTERM, *(number for number in OTHERS if signal.getsignal(number) != signal.SIG_IGN)]


def ignore(*signals: signal.Signals) -> None:
    """Ignore these signals from now on."""
    _handle(signal.SIG_IGN, signals)


def _handle(handler: "Callable[..., None] | signal.Handlers", signals: tuple[signal.Signals, ...]) -> None:
    # Only the main thread may set handlers. Ray calls this code in another thread, and ends its workers by itself.
    if threading.current_thread() is threading.main_thread():
        for number in signals:
            signal.signal(number, handler)


@contextmanager
def deferred() -> Iterator[None]:
    """Defer KeyboardInterrupt to `raise_if_noted`, which must be called several times a second.

    The outermost context raises at its end if a signal is noted. A signal PATIENCE_S after the first raises at once.
    """
    outer, _state.deferred = _state.deferred, True
    try:
        yield
        if not outer:
            raise_if_noted()
    finally:
        _state.deferred = outer


def raise_if_noted() -> None:
    """Raise KeyboardInterrupt if a signal is noted, and clear the note."""
    if _state.noted:
        _state.noted = False
        raise KeyboardInterrupt
