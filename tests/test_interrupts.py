"""Ctrl-C is never lost; while ranks are measured, it is answered only where it breaks nothing."""

import os
import signal
import time

import pytest

from collbench.launch.turns import drive
from collbench.machine import interrupts


@pytest.fixture(autouse=True)
def handlers():
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, *interrupts.OTHERS)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    interrupts.answer()


def press(number=signal.SIGINT):
    os.kill(os.getpid(), number)


def test_an_interrupt_that_a_library_swallowed_is_raised_by_the_next_check():
    interrupts.answer(signal.SIGINT)
    try:
        press()
        time.sleep(60)
    except BaseException:  # as Rust code does if it has no caller to report to
        pass
    done = []

    def measuring():
        done.append("began")
        yield []

    with pytest.raises(KeyboardInterrupt):
        drive(measuring())
    assert not done


def test_while_measuring_an_interrupt_is_raised_by_the_next_check_and_at_the_end():
    interrupts.answer(signal.SIGINT)
    passed = []
    with pytest.raises(KeyboardInterrupt), interrupts.deferred():
        press()
        passed.append("no exception between two instructions")
        interrupts.raise_if_noted()
        passed.append("never")
    with pytest.raises(KeyboardInterrupt), interrupts.deferred():
        press()
        passed.append("nobody looked")
    assert passed == ["no exception between two instructions", "nobody looked"]
    interrupts.raise_if_noted()  # the interrupt was raised, and is not raised again


def test_only_the_first_of_several_signals_of_a_launcher_counts():
    interrupts.answer(signal.SIGINT, signal.SIGTERM, once=True)
    with pytest.raises(KeyboardInterrupt):
        press(signal.SIGTERM)
    press(signal.SIGINT)
    press(signal.SIGTERM)
