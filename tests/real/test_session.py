"""Signals on a robot's side: they interrupt, but not in the middle of what must not be."""

from __future__ import annotations

import os
import signal

import pytest

from real.session import uninterrupted


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_interrupts_after_the_block_not_in_it(stopping: None, number: int) -> None:
    done = []
    with pytest.raises(KeyboardInterrupt) as asked, uninterrupted():
        os.kill(os.getpid(), number)
        done.append("the rest of the block")
    assert done and asked.value.args == (number,)


def test_without_one_nothing_is_raised_and_the_next_interrupts_at_once(stopping: None) -> None:
    with uninterrupted():
        pass
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("the signal was not heard")


def test_a_second_ctrl_c_interrupts_in_the_block_too(stopping: None) -> None:
    with pytest.raises(KeyboardInterrupt), uninterrupted():
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("the second signal was not heard")
