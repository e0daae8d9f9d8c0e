"""Cloud Billing and its budgets: accounts, whose project is on which, alerts on costs."""

from __future__ import annotations

from localcloud.services.billing import accounts, budgets, links
from localcloud.services.billing.api import API, BUDGETS_API

__all__ = ["API", "BUDGETS_API", "accounts", "budgets", "links"]
