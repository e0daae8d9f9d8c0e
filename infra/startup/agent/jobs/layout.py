"""Where everything of the jobs lies in a stack's bucket.

queue/NAME.json              what a job is and what has become of it (record.py)
bell                         written after each change that the runner should see at once
runners/TPU.json             the lease of the machine that runs jobs on a TPU (lease.py)
idle-stop.json               after how many minutes without a job the TPU is taken down (limits.py)
messages/ends/NAME           written once people have been told that the job has ended (messages.py)
messages/since               since when they are told
archives/SHA256              what a job brings along: a folder as .tar.gz, or a wheel
jobs/NAME/                   JOB_DIR: what the job writes itself
jobs/NAME/model/             MODEL_DIR
jobs/NAME/artifacts/PATH     the files that a job left in ARTIFACTS_DIR
jobs/NAME/logs/TRY/OFFSET    what it wrote, in pieces: bytes of a try from an offset on
data/                        DATA_DIR, the stack's data set
"""

from __future__ import annotations

import re

QUEUE = "queue/"
BELL = "bell"
IDLE_STOP = "idle-stop.json"
MESSAGES = "messages/ends/"
TOLD_SINCE = "messages/since"
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


def told(job: str) -> str:
    """Return where it stands that people have been told of a job's end."""
    return f"{MESSAGES}{job}"


def archive(sha256: str) -> str:
    """Return where an archive lies, by its digest."""
    return f"archives/{sha256}"


def folder(job: str) -> str:
    """Return a job's own folder."""
    return f"jobs/{job}/"


def artifacts(job: str) -> str:
    """Return the folder of the files that a job left."""
    return f"{folder(job)}artifacts/"


def logs(job: str, number: int | None = None) -> str:
    """Return the folder of a job's logs, or of those of one try."""
    return f"{folder(job)}logs/" + (f"{number:04}/" if number is not None else "")


def piece(job: str, number: int, offset: int) -> str:
    """Return where the piece of a log lies that begins at an offset; names sort like offsets."""
    return f"{logs(job, number)}{offset:015}"


def offset_of(path: str) -> int:
    """Return the offset at which a piece begins."""
    return int(path.rpartition("/")[2])
