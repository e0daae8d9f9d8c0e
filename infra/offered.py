"""A preview asks Google about what the catalog does not know, where credentials are there."""

from __future__ import annotations

from functools import partial

import pulumi

from infra import beside
from infra.checks.context import Context
from infra.checks.unproven import Unlisted, unlisted
from infra.enabled import users_session
from infra.settings import StackSettings

_SECONDS = 10.0
_OFFERED, _MISSING = 200, 404


def report(settings: StackSettings, context: Context) -> None:
    """Say whether Google offers what the catalog does not know.

    The look-ups run beside the program. Where Google says nothing, the warning of the checks
    stands.
    """
    for one in unlisted(settings, context):
        beside.look(partial(asked, one), partial(_tell, one))


def _tell(one: Unlisted, status: int) -> None:
    if status == _OFFERED:
        pulumi.log.info(f"{one.setting}: Google offers {one.value}.")
    elif status == _MISSING:
        pulumi.log.warn(
            f"{one.setting}: Google does not offer {one.value}. `pulumi up` would fail."
        )


def asked(one: Unlisted) -> int:
    """Return the status with which Google answers; 0 if nobody may ask."""
    try:
        session = users_session()
        return session.get(one.url, timeout=_SECONDS).status_code if session else 0
    except Exception:  # No error of any kind may fail a preview.
        return 0
