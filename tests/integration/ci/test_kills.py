"""Deployments that are killed, wherever they are."""

from __future__ import annotations

import contextlib
import random
import signal
from collections.abc import Iterator

import psutil
import pytest

from tests.integration.ci.conftest import Checkout, MakeCheckout
from tpustack.localcloud import LocalCloudCommand

KILLS = 20
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


def kill_after(lines: int, checkout: Checkout) -> int:
    """Starts a deployment and kills all of it at that line of its output; gives the line's number.

    The lines tell its progress, however busy the machine is.
    """
    run = checkout.start("deploy", "--stack", "dev")
    assert run.stdout is not None
    count = 0
    for _ in run.stdout:
        count += 1
        if count == lines:
            break
    end_all(run.pid)
    run.stdout.close()
    run.wait()
    return count


def end_all(pid: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        children = psutil.Process(pid).children(recursive=True)
        for process in (psutil.Process(pid), *children):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)


@pytest.mark.xfail(
    strict=False,
    reason="seen: after several kills without a repair in between, a replaced bucket was in the "
    "state without its outputs, and could not be deleted; about one run in four",
)
def test_a_deployment_that_is_killed_anywhere_is_repaired_by_running_it_again(
    killer: Checkout, cloud: LocalCloudCommand
) -> None:
    before = cloud.status()["resources"]
    killer.ci("deploy", "--stack", "dev")
    # Each round makes, changes, replaces and deletes something. The lines of such a run.
    lines, points = 75, random.Random(6)
    for kill in range(KILLS):
        labels = {"round": str(kill), "buckets": str(1 + kill % 3), "name": f"n{kill // 2}"}
        killer.settings("dev", labels=labels)
        kill_after(points.randint(1, lines), killer)
        if kill % (KILLS // 2) == KILLS // 2 - 1:
            repaired = killer.ci("deploy", "--stack", "dev")
            assert repaired.code in (NO_CHANGE, CHANGES), repaired.said
    again = killer.ci("deploy", "--stack", "dev")
    assert again.code == NO_CHANGE, again.said
    # Nothing is there that the state does not know.
    assert killer.ci("destroy", "--stack", "dev", "--confirm", "dev").code == CHANGES
    assert cloud.status()["resources"] == before
