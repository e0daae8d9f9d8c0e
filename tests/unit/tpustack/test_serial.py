"""The serial port tells how far the training is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tpustack.cloud.google import NotFound
from tpustack.errors import TpustackError
from tpustack.logs import serial
from tpustack.logs.serial import Boot, Ended, Progress, Story, _say_why_silent

PREFIX = "Nov 21 training[12]: "


class FakeGoogle:
    """Hands out what a serial port would hold, a piece a call; None for a VM that is gone."""

    def __init__(self, pieces: list[str | None]) -> None:
        self.pieces = pieces
        self.starts: list[int] = []
        self.number = 1

    def get(self, url: str, parameters: dict[str, Any]) -> dict[str, Any]:
        if url.endswith("/instances/v"):
            if not self.number:
                raise NotFound("never there")
            return {"id": str(self.number)}
        start = int(parameters["start"])
        self.starts.append(start)
        piece = self.pieces.pop(0) if self.pieces else ""
        if piece is None:
            self.number += 1
            raise NotFound("gone")
        return {"contents": piece, "next": str(start + len(piece))}


def lines_of(google: FakeGoogle, count: int) -> list[str | None]:
    found = serial.lines(google, project="p", zone="z", vm="v", sleep=lambda _: None)  # type: ignore[arg-type]
    return [next(found) for _ in range(count)]


def test_a_line_that_comes_in_two_pieces_is_given_once_it_is_whole() -> None:
    assert lines_of(FakeGoogle(["one\ntw", "", "", "o\n"]), 3) == ["one", None, "two"]


def test_reading_continues_where_it_stopped() -> None:
    google = FakeGoogle(["12345\n", "67\n"])
    lines_of(google, 2)
    assert google.starts[:2] == [0, 6]


def test_earlier_boots_are_left_out_also_where_a_read_ends_within_them() -> None:
    boots = "UEFI: Attempting to start image.\nLinux version 6.1\ntraining failed: old\n" * 2
    google = FakeGoogle([boots[:40], boots[40:100], f"{boots[100:]}now\n", "", "later\n"])
    shown = [line for line in lines_of(google, 6) if line is not None]
    assert shown == [
        "UEFI: Attempting to start image.",
        "Linux version 6.1",
        "training failed: old",
        "now",
        "later",
    ]


def test_a_recreated_vm_is_waited_for_and_read_from_its_beginning() -> None:
    google = FakeGoogle(["12345\n", "", None, "again\n"])
    assert lines_of(google, 3) == ["12345", None, "again"]
    assert google.starts[:4] == [0, 6, 6, 0]


def test_a_vm_recreated_between_two_reads_is_noticed() -> None:
    google = FakeGoogle(["12345\n", "", *[""] * 10, "again\n"])
    read = serial.lines(google, project="p", zone="z", vm="v", sleep=lambda _: None)  # type: ignore[arg-type]
    assert next(read) == "12345"
    google.number = 2
    assert [next(read) for _ in range(11)] == [*[None] * 10, "again"]
    assert 0 in google.starts[2:]


def test_a_vm_that_never_existed_is_an_error() -> None:
    google = FakeGoogle([])
    google.number = 0
    with pytest.raises(NotFound, match="never there"):
        lines_of(google, 1)


def test_progress_has_the_step_and_the_figures() -> None:
    said = Story().read(PREFIX + "progress step=120/234 loss=0.12 examples_per_second=5120 eta=9s")
    assert said == Progress(120, 234, {"loss": "0.12", "examples_per_second": "5120", "eta": "9s"})


SCRIPT = "google_metadata_script_runner[612]: "
FAILED = f"{PREFIX}training failed: no such file"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["training finished test_accuracy=0.99"], Ended(True, "test_accuracy=0.99")),
        (["training on eight replicas"], None),
        ([f"{SCRIPT}startup-script: tpu-stack: starting the job a"], None),
        # The agent starts a trainer again that failed.
        ([FAILED, f"{PREFIX}tpu-stack: the trainer ended with exit code 1; it is started"], None),
        ([FAILED, "training finished test_accuracy=0.99"], Ended(True, "test_accuracy=0.99")),
        # It does not after wrong input.
        (
            [FAILED, f"{PREFIX}tpu-stack: the trainer is not restarted: exit code 2"],
            Ended(False, "no such file"),
        ),
        (
            [
                f"{SCRIPT}startup-script: E: no space",
                f'{SCRIPT}Script "startup-script" failed with error: exit status 100',
            ],
            Ended(False, "the start-up script failed: E: no space (exit status 100)"),
        ),
        (
            [f"{SCRIPT}startup-script exit status 1"],
            Ended(False, "the start-up script failed: no output (exit status 1)"),
        ),
        ([f"{SCRIPT}startup-script exit status 0"], None),
        (
            [
                f"{SCRIPT}startup-script: tpu-stack: the job a has finished already (gs://b/finished)"
            ],
            Ended(
                True,
                "earlier: the job a has finished already. Nothing was trained now; set "
                "training.job to run another one",
            ),
        ),
        # What failed before a reboot is not why anything fails after it.
        (
            [
                FAILED,
                "[    0.000000] Linux version 6.1.0",
                f"{PREFIX}tpu-stack: the trainer is not restarted: exit code 2",
            ],
            Ended(False, f"{PREFIX}tpu-stack: the trainer is not restarted: exit code 2"),
        ),
    ],
)
def test_the_training_is_over_when_nothing_starts_it_again(
    lines: list[str], expected: Ended | None
) -> None:
    story = Story()
    *before, last = [story.read(line) for line in lines]
    assert (before, last) == ([None] * len(before), expected)


def follow(source: Iterator[str | None], now: Iterator[float], heard: list[str]) -> Ended:
    return serial.wait_for_end(
        source,
        on_line=heard.append,
        on_progress=lambda said: None,
        on_silence=lambda: heard.append("silence"),
        silence=10.0,
        now=lambda: next(now),
    )


def test_following_ends_with_the_training_and_silence_does_not_end_it() -> None:
    heard: list[str] = []
    source = iter(["hello", *[None] * 25, "training finished", "later"])
    assert follow(source, iter(range(99)), heard).succeeded
    assert heard == ["hello", "silence", "silence"]


class OneVm:
    """Knows the state of one VM."""

    def __init__(self, status: str) -> None:
        self.status = status

    def get(self, url: str, parameters: dict[str, Any]) -> dict[str, Any]:
        if not self.status:
            raise NotFound("gone")
        return {"status": self.status}


OUTPUTS = {"project": "p", "vm_zone": "z", "vm_name": "v"}


@pytest.mark.parametrize(
    ("status", "said"),
    [("RUNNING", "nothing new for 5 minutes; v is RUNNING"), ("", "v is gone; waiting for")],
)
def test_the_state_of_a_silent_vm_is_shown(status: str, said: str) -> None:
    assert _say_why_silent(OneVm(status), OUTPUTS, "").startswith(said)  # type: ignore[arg-type]


def test_a_vm_that_is_off_is_an_error_with_advice() -> None:
    with pytest.raises(TpustackError, match=r"v is TERMINATED .* Look there"):
        _say_why_silent(OneVm("TERMINATED"), OUTPUTS, "Look there")  # type: ignore[arg-type]


def test_a_boot_is_one_line_until_the_first_step_and_again_after_a_restart() -> None:
    boot = Boot("vm")
    assert boot.holds("UEFI: Attempting to start image")
    assert boot.holds(PREFIX + "installing")
    boot.over()
    assert not boot.holds("a line of the trainer")
    assert boot.holds("Linux version 6.1")
    assert boot.last() == ["Linux version 6.1"]


def test_a_boot_that_came_to_nothing_is_shown_by_its_last_lines_once() -> None:
    boot = Boot("vm")
    for number in range(30):
        boot.holds(f"line {number}")
    assert boot.last() == [f"line {number}" for number in range(10, 30)]
    assert boot.last() == []


def test_a_failure_before_the_first_step_is_shown_at_once() -> None:
    assert not Boot("vm").holds(FAILED)


def test_progress_reads_as_the_trainers_own_bar() -> None:
    figures = {"loss": "0.0899", "examples_per_second": "4012", "eta": "31s", "name": "[b]x"}
    line = "training 220/703 · loss 0.090 · 4.0k ex/s · 31 s left · name [b]x"
    assert str(Progress(220, 703, figures)) == line
