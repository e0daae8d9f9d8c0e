"""Where everything is in a stack's bucket."""

from __future__ import annotations

import re
from typing import Final

DECLARATION: Final = "agent/declaration.json"
"""What the stack declares of its TPUs: `pulumi up` writes it, the agent recreates TPUs from it."""
DATA: Final = "data/"
WHEELS: Final = "wheels/"
JOBS: Final = "jobs/"
NOTICES: Final = "notices/"
"""What Google has announced for each TPU, by its name."""


def finished(job: str) -> str:
    """Return the object that marks a training as finished."""
    return f"{JOBS}{job}/finished"


# --- Where everything of the jobs lies in a stack's bucket.
#
# queue/NAME.json              what a job is and what has become of it (record.py)
# bell                         written after each change that the runner should see at once
# runners/TPU.json             the lease of the machine that runs jobs on a TPU (lease.py)
# slices/TPU.json              which try runs on all hosts of a TPU (hosts.py)
# agent/wanted.json            when a job has found the TPU gone, which is made anew for it then
#                              (recovery.py)
# idle-stop.json               after how many minutes without a job the TPU is taken down (limits.py)
# archives/SHA256              what a job brings along: a folder as .tar.gz, or a wheel
# jobs/NAME/                   JOB_DIR: what the job writes itself
# jobs/NAME/model/             MODEL_DIR
# jobs/NAME/artifacts/PATH     the files that a job left in ARTIFACTS_DIR
# jobs/NAME/hosts/TRY/N.json   that a try runs on host N of a slice, or how it ended there, and N.log:
#                              what it wrote there
# jobs/NAME/logs/TRY/OFFSET    what it wrote, in pieces: bytes of a try from an offset on
# data/                        DATA_DIR, the stack's data set

QUEUE = "queue/"
BELL = "bell"
WANTED = "agent/wanted.json"
IDLE_STOP = "idle-stop.json"
NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?")
"""What a job may be called: it is part of names in the bucket and on the machine."""
_SUFFIX = ".json"


def record(job: str) -> str:
    """Return where a job's record lies."""
    return f"{QUEUE}{job}{_SUFFIX}"


def job_of(path: str) -> str:
    """Return whose record lies at a path."""
    return path.removeprefix(QUEUE).removesuffix(_SUFFIX)


def lease(tpu: str) -> str:
    """Return where the lease of a TPU lies."""
    return f"runners/{tpu}.json"


def on_all_hosts(tpu: str) -> str:
    """Return where it stands which try runs on all hosts of a TPU."""
    return f"slices/{tpu}.json"


def archive(sha256: str) -> str:
    """Return where an archive lies, by its digest."""
    return f"archives/{sha256}"


def folder(job: str) -> str:
    """Return a job's own folder."""
    return f"jobs/{job}/"


def artifacts(job: str) -> str:
    """Return the folder of the files that a job left."""
    return f"{folder(job)}artifacts/"


def hosts(job: str, number: int) -> str:
    """Return the folder of what hosts but worker 0 tell of a try."""
    return f"{folder(job)}hosts/{number:04}/"


def logs(job: str, number: int | None = None) -> str:
    """Return the folder of a job's logs, or of those of one try."""
    return f"{folder(job)}logs/" + (f"{number:04}/" if number is not None else "")


def piece(job: str, number: int, offset: int) -> str:
    """Return where the piece of a log lies that begins at an offset; names sort like offsets."""
    return f"{logs(job, number)}{offset:015}"


def offset_of(path: str) -> int | None:
    """Return the offset at which a piece begins; None for what is none."""
    name = path.rpartition("/")[2]
    return int(name) if re.fullmatch(r"[0-9]{15}", name) else None
