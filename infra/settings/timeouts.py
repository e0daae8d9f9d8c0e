"""How long operations on a machine may take."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from infra.settings.base import Section

Minutes = Annotated[float | None, Field(ge=1, le=24 * 60)]


class Timeouts(Section):
    """How many minutes an operation may take."""

    create_minutes: Minutes = None
    """Creation (1 to 1440; default: 20)."""
    update_minutes: Minutes = None
    """Changes in place (1 to 1440; default: 20)."""
    delete_minutes: Minutes = None
    """Deletion (1 to 1440; default: 20)."""
