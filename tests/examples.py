"""How many examples by chance a test tries: all of them, or a tenth in `make unit`."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

QUICK = "quick"
# How long an example takes is the machine's load, not the code's fault.
_ANY_LOAD = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def register_profiles() -> None:
    """Let `--hypothesis-profile=quick` choose the tenth."""
    settings.register_profile("any load", _ANY_LOAD)
    settings.register_profile(QUICK, _ANY_LOAD, max_examples=_ANY_LOAD.max_examples // 10)
    settings.load_profile("any load")


def examples(number: int) -> int:
    """Return the number, or a tenth of it."""
    return number // 10 if settings.get_current_profile_name() == QUICK else number
