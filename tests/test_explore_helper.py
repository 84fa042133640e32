"""The process beside the server: it ends with the server, whatever it does, and whoever calls it meanwhile."""

import os
import threading
import time

import pytest

from crossflow.base.errors import CrossflowError
from crossflow.edges.explore.helper import ABANDON, AWAITED, Helper


@pytest.mark.slow
def test_a_call_that_is_ended_is_one_error_and_no_other_process_begins():
    helper, told = Helper(), []

    def call():
        try:
            helper.call(time.sleep, 60)
        except CrossflowError as error:
            told.append(str(error))

    assert helper.call(abs, -3) == 3
    caller = threading.Thread(target=call)
    caller.start()
    time.sleep(0.2)
    helper.close()
    caller.join(timeout=10)
    assert not caller.is_alive()
    assert told == ["the process that computes beside the page has ended; try again"]
    with pytest.raises(CrossflowError, match="the server has ended"):
        helper.call(abs, -3)


@pytest.mark.slow
def test_ending_while_a_process_begins_is_no_error():
    for pause in (0.0, 0.01, 0.05, 0.2):
        helper, told = Helper(), []

        def call(helper=helper, told=told):
            try:
                helper.call(time.sleep, 60)
            except CrossflowError as error:
                told.append(error)

        caller = threading.Thread(target=call)
        caller.start()
        time.sleep(pause)
        helper.close()
        caller.join(timeout=10)
        assert len(told) == 1


def _gone_after(seconds):
    """Somebody who waits for an answer for some seconds."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() < end


@pytest.mark.slow
@pytest.mark.skipif(ABANDON is None, reason="needs signals of POSIX")
def test_a_call_that_nobody_awaits_is_left_and_the_next_is_answered_by_the_same_process():
    helper, began = Helper(), time.monotonic()
    process = helper.call(os.getpid)
    for seconds in (0.0, 0.2):  # gone before the call is made, and in the middle of it
        asked = AWAITED.set(_gone_after(seconds))
        with pytest.raises(ConnectionAbortedError):
            helper.call(time.sleep, 60)
        AWAITED.reset(asked)
    assert helper.call(os.getpid) == process
    assert time.monotonic() - began < 30
    helper.close()
