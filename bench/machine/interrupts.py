"""Ctrl-C, and SIGTERM and SIGHUP like it: noted at once, and while ranks are measured raised only where nothing breaks.

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

# Whoever asks again after this many seconds is answered at once, wherever the program is.
PATIENCE_S = 1.0


@dataclass(slots=True)
class _State:
    """The state of the signals that this process answers."""

    # True if a signal has come that was not raised.
    noted: bool = False
    # True if only `raise_if_noted` raises.
    deferred: bool = False


_state = _State()


def answer(*signals: signal.Signals, once: bool = False) -> None:
    """From now on, raise KeyboardInterrupt on these signals. once: only on the first; launchers send several."""
    came: list[float] = []

    def interrupt(*_: object) -> None:
        came.append(time.monotonic())
        if once and len(came) > 1:
            return
        _state.noted = True
        if not _state.deferred or came[-1] - came[0] > PATIENCE_S:
            raise KeyboardInterrupt

    _state.noted = False
    # What cannot pass an interrupt on prints a traceback of it; it is noted, and raised later.
    sys.unraisablehook = lambda lost: None if lost.exc_type is KeyboardInterrupt else sys.__unraisablehook__(lost)
    _handle(interrupt, signals)


def asked_to_end() -> list[signal.Signals]:
    """The signals that end a run in order: SIGTERM, and Ctrl-C and the end of the terminal where they are not ignored.

    What a shell starts in the background ignores Ctrl-C, what `nohup` starts ignores SIGHUP, and both go on doing so.
    """
    others = [signal.SIGINT, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]  # Windows can make plans
    return [signal.SIGTERM, *(number for number in others if signal.getsignal(number) != signal.SIG_IGN)]


def ignore(*signals: signal.Signals) -> None:
    """From now on, these signals do nothing."""
    _handle(signal.SIG_IGN, signals)


def _handle(handler: "Callable[..., None] | signal.Handlers", signals: tuple[signal.Signals, ...]) -> None:
    # Only the main thread may set handlers. Ray calls us in another thread, and ends its workers by itself.
    if threading.current_thread() is threading.main_thread():
        for number in signals:
            signal.signal(number, handler)


@contextmanager
def deferred() -> Iterator[None]:
    """Context in which only `raise_if_noted` raises, which must be called every fraction of a second.

    The outermost one raises at its end what is still noted.
    """
    outer, _state.deferred = _state.deferred, True
    try:
        yield
        if not outer:
            raise_if_noted()
    finally:
        _state.deferred = outer


def raise_if_noted() -> None:
    """Raise KeyboardInterrupt if one of the signals has come and did not get through."""
    if _state.noted:
        _state.noted = False
        raise KeyboardInterrupt
