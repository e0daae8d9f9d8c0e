"""An entry of the ledger: what one start of a job did with its time.

Each start writes its own file, `MODEL_DIR/ledger/*.json`, again and again; no two write the same.
"""

import dataclasses
import json
from dataclasses import dataclass

FOLDER = "ledger"
# The parts that monitoring/step_times.py measures.
PARTS = ("load", "start", "compute", "input", "checkpoint", "idle")


@dataclass(frozen=True)
class Entry:
    """One start of a job.

    Attributes:
        begin: When it started, in seconds since the epoch by its machine's clock.
        duration: For how long it has run, by a clock that is never set.
        first_step: The step from which it went on.
        last_step: The last one that it finished.
        seconds: What it spent on each of PARTS; the rest of `duration` came before its first loop.
    """

    begin: float
    duration: float
    first_step: int
    last_step: int
    seconds: dict[str, float]

    def to_json(self) -> str:
        """Return the text of its file."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True) + "\n"


def parse(text: str) -> Entry | None:
    """Return the entry in a file's text; None if that is garbage."""
    try:
        content = json.loads(text)
        seconds = {part: float(content["seconds"][part]) for part in PARTS}
        times = [float(content[name]) for name in ("begin", "duration")]
        steps = [int(content[name]) for name in ("first_step", "last_step")]
    except (ValueError, KeyError, TypeError):
        return None
    numbers = [*times, *seconds.values()]
    if not all(0 <= number < 1e12 for number in numbers) or not 0 <= steps[0] <= steps[1]:
        return None
    return Entry(times[0], times[1], steps[0], steps[1], seconds)
