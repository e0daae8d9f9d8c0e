"""Counts, dollars and times as people read them."""

from __future__ import annotations

from decimal import Decimal

import pytest

from tpu_core.words import clock, duration, money, plural, progress


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (0, "step", "0 steps"),
        (1, "start", "1 start"),
        (1703, "step", "1,703 steps"),
    ],
)
def test_a_noun_follows_its_count(count: int, noun: str, text: str) -> None:
    assert plural(count, noun) == text


@pytest.mark.parametrize(
    ("amount", "places", "text"),
    [
        (Decimal(12288), 2, "$12,288.00"),
        (Decimal("0.005"), 2, "$0.01"),
        (Decimal("0.0049"), 2, "< $0.01"),
        (0.0000011, 2, "< $0.01"),
        (0.0000011, 4, "< $0.0001"),
        (0, 2, "$0.00"),
        (4.61, 4, "$4.6100"),
    ],
)
def test_an_amount_is_never_a_row_of_zeros(amount: Decimal, places: int, text: str) -> None:
    assert money(amount, places) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.0000004, "0.0004 ms"),
        (0.000854, "0.85 ms"),
        (0.0123, "12.3 ms"),
        (0.9996, "1 s"),
        (4.52, "4.52 s"),
        (9.999, "10 s"),
        (59.6, "1 min"),
        (200, "3 min 20 s"),
        (1500, "25 min"),
        (3590, "1 h"),
        (7500, "2 h 5 min"),
        (86400, "24 h"),
        (200_000, "2 d 8 h"),
    ],
)
def test_a_time_has_the_unit_and_the_digits_that_count(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (40.4, "0:40"), (59.7, "1:00"), (3725, "1:02:05"), (360_000, "100:00:00")],
)
def test_a_clock_shows_hours_only_if_there_are_any(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_progress_has_step_loss_rate_time_gone_and_time_left() -> None:
    line = progress(220, 703, 0.0899, 4012.0, 31.2, 40.1)
    assert line == "220/703 · loss 0.090 · 4.0k ex/s · 0:40 · 31 s left"
    line = progress(1, 9, 1.0, 320.0, 90.0, 5.0)
    assert line == "1/9 · loss 1.000 · 320 ex/s · 0:05 · 1 min 30 s left"
