"""The Security Token Service: tokens of other issuers against ones for Google's APIs."""

from __future__ import annotations

from localcloud.services.sts import exchange
from localcloud.services.sts.exchange import API

__all__ = ["API", "exchange"]
