import os
import signal

import pytest

from jev_local.launch.signals import Interruptions


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_each_of_them_interrupts_and_is_remembered(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with Interruptions() as interruptions:
        assert not interruptions.came
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
        assert interruptions.came
    assert signal.getsignal(number) is before


def test_stopping_is_not_interrupted() -> None:
    with Interruptions() as interruptions:
        interruptions.ignore()
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
    assert not interruptions.came


def test_nohup_is_respected() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interruptions():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
