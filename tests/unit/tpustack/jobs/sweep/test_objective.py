"""What a trial has reached is read from its log, and at its end from the trainer's figures."""

from __future__ import annotations

import json
import math

import pytest

from tests.unit.agent.jobs.memory import Bucket, Clock, MemoryStore
from tpu_agent.jobs.queue import Queue
from tpu_core import paths
from tpustack.jobs.sweep import Reports


@pytest.fixture
def queue() -> Queue:
    return Queue(MemoryStore(Bucket(Clock())), print)


def written(queue: Queue, *pieces: bytes) -> Reports:
    offset = 0
    for piece in pieces:
        queue.store.write(paths.piece("j", 1, offset), piece)
        offset += len(piece)
    return Reports(queue, "j", "loss")


@pytest.mark.parametrize(
    "text",
    [
        b"step=10 loss=0.5\nepoch=1 loss=0.25 step=20\n",
        b"12:00 progress step=10/20 loss=0.5000 eta=3s\nprogress step=20/20 loss=0.2500\n",
    ],
    ids=["own", "trainer"],
)
def test_step_and_metric_are_read_from_a_log_line(queue: Queue, text: bytes) -> None:
    assert written(queue, text).read() == ((10, 0.5), (20, 0.25))


def test_reports_are_found_across_pieces_and_among_other_lines(queue: Queue) -> None:
    noise = b"\xff\x00 loss \n" + b"loss" * 300_000 + b"\nloss=3\nstep=1 loss=high\n"
    reports = written(queue, noise + b"step=1 loss=0.", b"5\nstep=2 loss=0.25")
    assert reports.read() == ((1, 0.5),)
    assert reports.final() == 0.25


def test_a_hostile_line_does_not_make_the_record_unreadable(queue: Queue) -> None:
    large = b"step=" + b"9" * 30 + b" loss=0.25\n"
    assert written(queue, large + b"step=1 loss=0.5\n").read() == ((1, 0.5),)


def test_each_piece_is_read_once_and_a_repeated_step_replaces_the_first(queue: Queue) -> None:
    reports = written(queue, b"step=1 loss=1\n")
    reports.read()
    queue.store.write(paths.piece("j", 2, 0), b"step=1 loss=2\n")
    assert reports.read() == ((1, 2.0),)


def test_metrics_json_takes_precedence_over_the_log(queue: Queue) -> None:
    reports = written(queue, b"step=1 loss=0.5\n")
    queue.store.write("jobs/j/model/metrics.json", json.dumps({"loss": 0.125}).encode())
    assert reports.final() == 0.125


def test_a_job_without_steps_has_its_last_line_as_result_and_is_never_pruned(queue: Queue) -> None:
    reports = written(queue, b"loss=0.5\nloss=0.25\n")
    assert (reports.read(), reports.final()) == ((), 0.25)


def test_a_missing_metric_differs_from_nan(queue: Queue) -> None:
    assert Reports(queue, "none", "loss").final() is None
    final = written(queue, b"step=1 loss=nan\n").final()
    assert final is not None
    assert math.isnan(final)
