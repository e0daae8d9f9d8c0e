"""The TPU API, of whose calls a queue needs a few."""

from __future__ import annotations

import time
from collections.abc import Callable

import requests

from infra.rest import ATTEMPTS, Api

_ROOT = "https://tpu.googleapis.com/v2alpha1/"


class TpuApi(Api):
    """Calls `v2alpha1` of the TPU API; names are `projects/P/locations/Z/…`."""

    def __init__(
        self,
        session: requests.Session | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        connects: int = ATTEMPTS,
    ) -> None:
        super().__init__(_ROOT, "TPU", session, clock, sleep, connects)
