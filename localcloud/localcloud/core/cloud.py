"""The cloud: state, time, identity and machines, as every handler gets them."""

from __future__ import annotations

import hashlib
import logging
import os
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
_SECRET = "secret"
_OTHERS = 0o077


class NotOwnError(Exception):
    """The home folder is somebody else's, or open to others and full of other things."""


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
        own(home)
        self.clock = clock or Clock()
        self.latency_profile = latency
        self.store = Store(home / "state.sqlite")
        secret = _secret(home / _SECRET)
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

    def token(self, principal: Principal, *, lifetime: float = 3600.0, machine: str = "") -> str:
        """Return a bearer token that is valid for `lifetime` seconds, of a machine or not."""
        now = self.clock.now()
        return self.tokens.issue(principal, issued=now, expires=now + lifetime, machine=machine)

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


def own(home: Path) -> None:
    """Make a folder that nobody else can enter, or shut one that the local cloud has made.

    Raises:
        NotOwnError: when it holds other files too, and others may enter it.
    """
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = home.stat()
    if not found.st_mode & _OTHERS and found.st_uid == os.geteuid():
        return
    if found.st_uid != os.geteuid() or (any(home.iterdir()) and not (home / _SECRET).exists()):
        raise NotOwnError(
            f"{home}: other users may enter it, and it holds other files or is not yours. Name a "
            "folder of its own; a new one is made"
        )
    home.chmod(0o700)


def admin_key(secret: bytes) -> str:
    """Return the key to `/_local/v1/`, made of the secret in the home folder."""
    return hashlib.sha256(b"administrator" + secret).hexdigest()


def _secret(path: Path) -> bytes:
    if not path.exists():
        path.touch(mode=0o600)
        path.write_bytes(secrets.token_bytes(32))
    return path.read_bytes()
