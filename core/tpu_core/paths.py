"""Where everything is in a stack's bucket.

agent/declaration.json       what the stack declares of its TPUs: `pulumi up` writes it
agent/state.json             what the agent remembers of TPUs that it recreates
agent/wanted.json            when a job last found its TPU gone, which is then recreated
wheels/                      training wheels, by their digest
data/                        DATA_DIR: the stack's dataset
notices/TPU                  what Google has announced for a TPU
rejected/                    copies of damaged objects, each with the reason
limits/                      what limits have done
queue/NAME.json              a job and what became of it
bell                         written after each change that the runner should see at once
idle-stop.json               after how many minutes without a job the TPU is deleted
archives/SHA256              what a job brings along: a folder as .tar.gz, or a wheel
runners/TPU.json             the lease of the machine that runs jobs on a TPU
slices/TPU.json              which attempt runs on all hosts of a TPU
slices/TPU.trainer           there while the stack's own trainer is to run on all hosts
slices/TPU.trainer/N/H.json  that its start N runs on host H, or how it ended there
slices/TPU/N                 written again and again while host N of a spot slice is alive
jobs/NAME/                   JOB_DIR: what a job or a training writes itself
jobs/NAME/finished           written when a training has finished
jobs/NAME/model/             MODEL_DIR of a job
jobs/NAME/artifacts/PATH     the files that a job left in ARTIFACTS_DIR
jobs/NAME/hosts/TRY/N.json   that an attempt runs on host N of a slice, or how it ended there
jobs/NAME/hosts/TRY/N.log    what it wrote there
jobs/NAME/logs/TRY/OFFSET    what it wrote, in pieces: the bytes of an attempt from an offset on
"""

import re
from typing import Final

DECLARATION: Final = "agent/declaration.json"
STATE: Final = "agent/state.json"
WANTED: Final = "agent/wanted.json"
DATA: Final = "data/"
WHEELS: Final = "wheels/"
JOBS: Final = "jobs/"
NOTICES: Final = "notices/"
QUEUE: Final = "queue/"
BELL: Final = "bell"
IDLE_STOP: Final = "idle-stop.json"
NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?")
"""What a job may be called: it is part of names in the bucket and on the machine."""
_SUFFIX = ".json"


def finished(job: str) -> str:
    """Return the object that marks a training as finished."""
    return f"{JOBS}{job}/finished"


def ledger(job: str) -> str:
    """Return the folder of a training's ledger."""
    return f"{JOBS}{job}/ledger"


def record(job: str) -> str:
    """Return a job's record."""
    return f"{QUEUE}{job}{_SUFFIX}"


def job_of(path: str) -> str:
    """Return the job whose record has this path."""
    return path.removeprefix(QUEUE).removesuffix(_SUFFIX)


def lease(tpu: str) -> str:
    """Return the lease of a TPU."""
    return f"runners/{tpu}.json"


def on_all_hosts(tpu: str) -> str:
    """Return the object that says which attempt runs on all hosts of a TPU."""
    return f"slices/{tpu}.json"


def trainer_on_all_hosts(tpu: str) -> str:
    """Return the object whose generation is the start of the trainer that runs on all hosts."""
    return f"slices/{tpu}.trainer"


def trainers(tpu: str, start: int | None = None) -> str:
    """Return the folder of what hosts other than worker 0 report of the trainer, or of a start."""
    return f"{trainer_on_all_hosts(tpu)}/" + (f"{start}/" if start is not None else "")


def beats(tpu: str) -> str:
    """Return the folder of the heartbeats of a slice's hosts."""
    return f"slices/{tpu}/"


def beat(tpu: str, number: int) -> str:
    """Return the heartbeat of a slice's host."""
    return f"{beats(tpu)}{number}"


def archive(sha256: str) -> str:
    """Return an archive by its digest."""
    return f"archives/{sha256}"


def folder(job: str) -> str:
    """Return a job's own folder."""
    return f"{JOBS}{job}/"


def artifacts(job: str) -> str:
    """Return the folder of the files that a job left."""
    return f"{folder(job)}artifacts/"


def hosts(job: str, number: int) -> str:
    """Return the folder of what hosts other than worker 0 report of an attempt."""
    return f"{folder(job)}hosts/{number:04}/"


def logs(job: str, number: int | None = None) -> str:
    """Return the folder of a job's logs, or of those of one attempt."""
    return f"{folder(job)}logs/" + (f"{number:04}/" if number is not None else "")


def piece(job: str, number: int, offset: int) -> str:
    """Return the piece of a log that begins at an offset; names sort like offsets."""
    return f"{logs(job, number)}{offset:015}"


def offset_of(path: str) -> int | None:
    """Return the offset at which a piece begins; None if it is not a piece."""
    name = path.rpartition("/")[2]
    return int(name) if re.fullmatch(r"[0-9]{15}", name) else None
