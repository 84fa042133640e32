"""The process beside the server: it ends with the server, whatever it does, and whoever calls it meanwhile."""

import threading
import time

import pytest

from crossflow.base.errors import CrossflowError
from crossflow.edges.explore.helper import Helper


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
