"""Numbers as people read them: counts, US dollars and times, the same in each command and page."""

from decimal import ROUND_HALF_UP, Decimal

_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def plural(count: int, noun: str) -> str:
    """Return a count with its noun, to which several add an s: `1 start`, `1,703 steps`."""
    return f"{count:,} {noun if count == 1 else noun + 's'}"


def money(amount: Decimal | float, places: int = 2) -> str:
    """Return US dollars like `$12,288.00`, half a cent rounded up; below that `< $0.01`."""
    least = Decimal(1).scaleb(-places)
    exact = Decimal(str(amount))
    rounded = exact.quantize(least, ROUND_HALF_UP)
    return f"< ${least:f}" if exact > 0 and rounded == 0 else f"${rounded:,f}"


def duration(seconds: float) -> str:
    """Return a time with the digits that count: `0.85 ms`, `4.52 s`, `3 min 20 s`, `2 h 5 min`."""
    seconds = max(0.0, seconds)  # Clocks of two machines differ.
    if 0 < seconds < 0.9995:
        return f"{_digits(seconds * 1000)} ms"
    if seconds < 59.5:
        return f"{_digits(seconds)} s"
    whole = round(seconds)
    if whole < 10 * _MINUTE:
        return _two(whole, _MINUTE, "min", 1, "s")
    if whole < _HOUR - 30:
        return f"{_in(_MINUTE, whole)} min"
    if whole < 2 * _DAY:
        return _two(_in(_MINUTE, whole) * _MINUTE, _HOUR, "h", _MINUTE, "min")
    return _two(_in(_HOUR, whole) * _HOUR, _DAY, "d", _HOUR, "h")


def clock(seconds: float) -> str:
    """Return a time like a clock's, whose width hardly changes: `0:40`, `1:02:05`."""
    minutes, rest = divmod(round(seconds), _MINUTE)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def progress(step: int, steps: int, loss: float, rate: float, left: float, elapsed: float) -> str:
    """Return a training's progress: `220/703 · loss 0.090 · 4.0k ex/s · 0:40 · 31 s left`."""
    times = f"{clock(elapsed)} · {duration(round(left))} left"
    return f"{step}/{steps} · loss {loss:.3f} · {pace(rate)} · {times}"


def pace(rate: float) -> str:
    """Return examples a second: `4.0k ex/s`."""
    return f"{rate / 1000:.1f}k ex/s" if rate >= 1000 else f"{rate:.0f} ex/s"


def _digits(value: float) -> str:
    return f"{value:.3g}" if value >= 0.995 else f"{value:.2g}"


def _in(unit: int, seconds: int) -> int:
    return (seconds + unit // 2) // unit


def _two(seconds: int, large: int, name: str, small: int, rest: str) -> str:
    first, left = divmod(seconds, large)
    second = left // small
    return f"{first} {name} {second} {rest}" if second else f"{first} {name}"
