"""Google's provider, started while a preview's program still loads.

The engine starts a provider when it's first asked for, which is after the program's imports and
checks; its start takes about as long as those.
"""

from __future__ import annotations

import contextlib
import threading
from importlib.metadata import version
from typing import Any

import pulumi
from pulumi.runtime.proto.resource_pb2 import ResourceInvokeRequest
from pulumi.runtime.settings import get_monitor

# A function that the provider computes itself: it sends no request.
_FUNCTION = "gcp:organizations/getIAMPolicy:getIAMPolicy"


def start_provider() -> None:
    """Start the provider beside a preview's program.

    Not in an update: one that ends because of its settings must leave nothing in the state, not
    even a provider.
    """
    if pulumi.runtime.is_dry_run():
        threading.Thread(target=_ask, name="provider", daemon=True).start()


def _ask() -> None:
    monitor: Any = get_monitor()
    # The resources ask for the same provider again, and tell what is wrong with it.
    with contextlib.suppress(Exception):
        monitor.Invoke(ResourceInvokeRequest(tok=_FUNCTION, version=version("pulumi-gcp")))
