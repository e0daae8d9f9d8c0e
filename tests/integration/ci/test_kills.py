"""Deployments that are killed, wherever they are."""

from __future__ import annotations

import contextlib
import random
import signal
from collections.abc import Iterator
from itertools import count

import psutil
import pytest

from tests.integration.ci.conftest import Checkout, MakeCheckout
from tpustack.local import LocalCloudCommand

KILLS, SEED = 20, 6
# Of a deployment's output; about as many as it has.
LINES = 45
NO_CHANGE, CHANGES = 0, 3


@pytest.fixture
def killer(checkout: MakeCheckout) -> Iterator[Checkout]:
    made = checkout("dev", small=True)
    yield made
    # The engine and the provider have process groups of their own.
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if str(made.path) in process.cwd():
                process.kill()


def is_killed_after(lines: int, checkout: Checkout) -> bool:
    """Starts a deployment and kills all of it at that line of its output, unless it is over before.

    The lines tell its progress, however busy the machine is.
    """
    run = checkout.start("deploy", "--stack", "dev")
    assert run.stdout is not None
    killed = any(number == lines for number, _ in enumerate(run.stdout, 1))
    end_all(run.pid)
    run.stdout.close()
    run.wait()
    return killed


def end_all(pid: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        # While it stands still, it starts no engine that would live on and hold the lock.
        psutil.Process(pid).suspend()
        children = psutil.Process(pid).children(recursive=True)
        for process in (psutil.Process(pid), *children):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)


def test_a_deployment_that_is_killed_anywhere_is_repaired_by_running_it_again(
    killer: Checkout, cloud: LocalCloudCommand
) -> None:
    before = cloud.status()["resources"]
    points, turns, kills = random.Random(SEED), count(), 0
    while kills < KILLS:
        # Each makes, changes, replaces and deletes something.
        turn = next(turns)
        labels = {"turn": str(turn), "buckets": str(1 + turn % 3), "name": f"n{turn // 2}"}
        killer.settings("dev", labels=labels)
        kills += is_killed_after(points.randint(1, LINES), killer)
    repaired = killer.ci("deploy", "--stack", "dev")
    assert repaired.code in (NO_CHANGE, CHANGES), repaired.said
    again = killer.ci("deploy", "--stack", "dev")
    assert again.code == NO_CHANGE, again.said
    # Nothing is there that the state does not know.
    confirmed = ("--stack", "dev", "--confirm", "dev", "--delete-data")
    assert killer.ci("destroy", *confirmed).code == CHANGES
    assert cloud.status()["resources"] == before
