"""An entry of the ledger: what one start of a job did with its time.

Each start writes its own file, `MODEL_DIR/ledger/*.json`, again and again; no two write the same.
"""

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

FOLDER = "ledger"
FORMAT = 1
"""The format of the ledger's files: one of another format is garbage to this release."""
ASIDE = ".garbage"
"""What a trainer adds to the name of a file of the ledger that is garbage."""
# Before the first step, as job/start.py measures it, and from it on, as monitoring/step_times.py
# does.
BEFORE = ("load", "wait", "connect", "restore")
PARTS = (*BEFORE, "start", "compute", "input", "checkpoint", "evaluate", "idle")
_LATEST = 1e12


@dataclass(frozen=True)
class Entry:
    """One start of a job.

    Attributes:
        begin: When it started, in seconds since the epoch by its machine's clock.
        duration: For how long it has run, by a clock that is never set.
        first_step: The step from which it went on.
        last_step: The last one that it finished.
        seconds: What it spent on each of PARTS; the rest of `duration` came before its first loop.
        machine: The name of the machine it ran on; empty where nobody wrote it.
        ending: Why it ended; empty while it runs, and for ever if it was killed.
    """

    begin: float
    duration: float
    first_step: int
    last_step: int
    seconds: Mapping[str, float]
    machine: str = ""
    ending: str = ""

    @property
    def end(self) -> float:
        """Its last sign of life."""
        return self.begin + self.duration

    def to_json(self) -> str:
        """Return the text of its file."""
        return json.dumps({"format": FORMAT, **dataclasses.asdict(self)}, sort_keys=True) + "\n"


FINISHED = "finished"
"""The ending of a start that did the job's last step."""


def parse(text: str) -> Entry | None:
    """Return the entry in a file's text; None if that is garbage."""
    try:
        content = json.loads(text)
        seconds = {part: number(content["seconds"][part]) for part in PARTS}
        times = [number(content[name]) for name in ("begin", "duration")]
        steps = [int(content[name]) for name in ("first_step", "last_step")]
        words = [str(content[name]) for name in ("machine", "ending")]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    if content.get("format") != FORMAT or not 0 <= steps[0] <= steps[1]:
        return None
    return Entry(times[0], times[1], steps[0], steps[1], seconds, words[0], words[1])


def number(value: object) -> float:
    """Return a time of a ledger. Raises ValueError or TypeError for what is none."""
    found = float(value)  # type: ignore[arg-type]
    if not (math.isfinite(found) and 0 <= found < _LATEST):
        raise ValueError(f"{found} is no time")
    return found
