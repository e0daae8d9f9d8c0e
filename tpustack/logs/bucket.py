"""Follows a training by what it writes to the bucket: Google shows no serial port of a TPU VM."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

from tpu_training.goodput.ledger import read
from tpustack.cloud.google import Google, NotFound
from tpustack.goodput.files import files_of

_SECONDS = 10.0


def lines(
    google: Google, job_url: str, sleep: Callable[[float], None] = time.sleep
) -> Iterator[str | None]:
    """Yield lines as the trainer would print them; None whenever there is nothing new.

    The ledger has the step once a minute. The agent marks a job that has finished.
    """
    said = ""
    while True:
        if _object(google, f"{job_url}/finished") is not None:
            metrics = json.loads(_object(google, f"{job_url}/metrics.json") or "{}")
            figures = {name: value for name, value in metrics.items() if name.startswith("test_")}
            yield f"training finished {' '.join(f'{n}={v}' for n, v in figures.items())}"
            return
        entries = read(files_of(job_url, google)).entries
        ending = f" ({entries[-1].ending})" if entries and entries[-1].ending else ""
        now = f"start {len(entries)}: step {entries[-1].last_step}{ending}" if entries else ""
        yield now if now != said else None
        said = now
        sleep(_SECONDS)


def _object(google: Google, url: str) -> str | None:
    try:
        return google.content(url)
    except NotFound:
        return None
