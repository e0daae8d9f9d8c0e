"""Settings of the budget."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from infra.settings.base import Section, StrEnum, Text

Percent = Annotated[int, Field(ge=1, le=1000)]


class BudgetScope(StrEnum):
    """Which costs count."""

    PROJECT = "project"
    STACK = "stack"


class BudgetSettings(Section):
    """A budget in Google's billing: it tells what was spent, and stops nothing."""

    amount: int = Field(ge=1, le=1_000_000_000)
    """Monthly budget in whole units of the currency (1 to 1000000000)."""
    currency: Text | None = None
    """Currency of the billing account, for example EUR; Google refuses any other. The account's own
    if it is not set.
    """
    scope: BudgetScope = BudgetScope.PROJECT
    """project (everything in the project), or stack (only resources with the stack's label: neither
    the network nor data that leaves the region).
    """
    thresholds: tuple[Percent, ...] = (50, 90, 100)
    """Percentages of the amount at which Google reports the spending (1 to 1000)."""
    forecast_thresholds: tuple[Percent, ...] = ()
    """Percentages of the amount at which Google reports the month's forecast (1 to 1000)."""
    emails: tuple[Text, ...] = ()
    """Addresses to notify, at most 5. The billing account's administrators are always notified."""
    pubsub_topic: Text | None = None
    """Pub/Sub topic to notify: the name of one to make, or projects/PROJECT/topics/NAME of an
    existing one.
    """
    billing_account: Text | None = None
    """Billing account, for example 01ABCD-234567-89EF01. The project's own if it is not set."""

    @property
    def own_topic(self) -> str | None:
        """The name of the topic to make; None for one that is there already, or none at all."""
        topic = self.pubsub_topic
        return None if topic is None or "/" in topic else topic
