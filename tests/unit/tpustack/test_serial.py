"""The serial port tells how far the training is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tpustack.cloud.google import NotFound
from tpustack.errors import TpustackError
from tpustack.logs import serial

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
    assert lines_of(FakeGoogle(["one\ntw", "", "o\n"]), 3) == ["one", None, "two"]


def test_reading_goes_on_where_it_stopped() -> None:
    google = FakeGoogle(["12345\n", "67\n"])
    lines_of(google, 2)
    assert google.starts == [0, 6]


def test_a_vm_that_is_made_anew_is_waited_for_and_read_from_its_beginning() -> None:
    google = FakeGoogle(["12345\n", None, "again\n"])
    assert lines_of(google, 3) == ["12345", None, "again"]
    assert google.starts == [0, 6, 0]


def test_a_vm_that_was_made_anew_unseen_is_noticed_when_nothing_new_comes() -> None:
    google = FakeGoogle(["12345\n", *[""] * 10, "again\n"])
    read = serial.lines(google, project="p", zone="z", vm="v", sleep=lambda _: None)  # type: ignore[arg-type]
    assert next(read) == "12345"
    google.number = 2
    assert [next(read) for _ in range(11)] == [*[None] * 10, "again"]
    assert google.starts[-1] == 0


def test_a_vm_that_was_never_there_is_an_error() -> None:
    google = FakeGoogle([])
    google.number = 0
    with pytest.raises(NotFound, match="never there"):
        lines_of(google, 1)


def test_progress_has_the_step_and_the_figures() -> None:
    said = serial.parse(PREFIX + "progress step=120/234 loss=0.12 examples_per_second=5120 eta=9s")
    assert said == serial.Progress(
        120, 234, {"loss": "0.12", "examples_per_second": "5120", "eta": "9s"}
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("training finished test_accuracy=0.99", serial.Ended(True, "test_accuracy=0.99")),
        ("training failed: no such file", serial.Ended(False, "no such file")),
        ("training on eight replicas", None),
    ],
)
def test_the_last_line_tells_how_it_ended(line: str, expected: serial.Ended | None) -> None:
    assert serial.parse(PREFIX + line) == expected


def follow(source: Iterator[str | None], now: Iterator[float]) -> serial.Ended:
    return serial.wait_for_end(
        source,
        on_line=lambda line: None,
        on_progress=lambda said: None,
        deadline=10.0,
        now=lambda: next(now),
    )


def test_following_ends_with_the_training() -> None:
    source = iter(["hello", None, "training finished", "later"])
    assert follow(source, iter(range(9))).succeeded


def test_a_vm_that_falls_silent_is_an_error() -> None:
    with pytest.raises(TpustackError, match="nothing to its serial port for 10 s"):
        follow(iter([None] * 99), iter(range(99)))
