"""The cloud: state, time, identity and machines, as every handler gets them."""

from __future__ import annotations

import hashlib
import logging
import secrets
from pathlib import Path
from typing import Literal

from localcloud.core import data
from localcloud.core.clock import Clock
from localcloud.core.faults import Faults
from localcloud.core.machines import Machines
from localcloud.core.operations import Operations
from localcloud.core.store import Record, Store
from localcloud.core.tokens import Principal, Tokens

log = logging.getLogger(__name__)

Latency = Literal["none", "real"]
DEVELOPER = "user:developer@tpu-stack.local"
SETTING = "setting"
"""The store's kind of settings, by name."""


class Cloud:
    """One local Google Cloud.

    Args:
        home: folder of its state; created when missing.
        clock: the wall clock, or a virtual one in tests.
        latency: `real` makes operations take as long as Google's do, `none` not at all.
    """

    machines: Machines
    """Set by `LocalCloud`, which knows what a machine's network leads to."""

    def __init__(
        self, home: Path, *, clock: Clock | None = None, latency: Latency = "none"
    ) -> None:
        self.home = home
        home.mkdir(parents=True, exist_ok=True)
        self.clock = clock or Clock()
        self.latency_profile = latency
        self.store = Store(home / "state.sqlite")
        secret = _secret(home / "secret")
        self.tokens = Tokens(secret)
        self.admin_key = admin_key(secret)
        """What the emulator's own command line shows to be let in."""
        self.operations = Operations(self.store, self.clock, self)
        self.faults = Faults(self.store, self.clock, self.operations.number)
        self.asked: dict[str, dict[str, bool]] = {}
        """By member: which permissions its calls asked for since the start, and if it had them."""

    def seconds(self, what: str) -> float:
        """Return how long `what` (a key of data/latencies.yaml, such as `tpu.create`) takes."""
        if self.latency_profile == "none":
            return 0.0
        return float(data.load("latencies")[what])

    def token(self, principal: Principal, *, lifetime: float = 3600.0) -> str:
        """Return a bearer token that is valid for `lifetime` seconds."""
        return self.tokens.issue(principal, expires=self.clock.now() + lifetime)

    def setting(self, name: str) -> Record:
        """Return a switch for scarcity, refusal or grace; empty where it is not set."""
        return self.store.get(SETTING, name) or {}

    def folder(self, *parts: str) -> Path:
        """Return a folder below the cloud's home, created when missing."""
        path = self.home.joinpath(*parts)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def close(self) -> None:
        """Stop the clock and close the store; the state stays on disk."""
        self.clock.close()
        self.store.close()


def admin_key(secret: bytes) -> str:
    """Return the key to `/_local/v1/`, made of the secret in the home folder."""
    return hashlib.sha256(b"administrator" + secret).hexdigest()


def _secret(path: Path) -> bytes:
    if not path.exists():
        path.touch(mode=0o600)
        path.write_bytes(secrets.token_bytes(32))
    return path.read_bytes()
