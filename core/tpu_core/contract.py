"""The contract between the Pulumi program, the machines and the command line.

The program writes these metadata keys; the start-up scripts and the agent read them. The scripts
start the agent, the trainer and the jobs with these variables, as these units. Each name is defined
here once; tests/unit/core/test_contract.py checks the shell scripts against it.
"""

from typing import Final, TypedDict

MARK: Final = "tpu-stack-mark"
"""The label by which a stack knows its own TPUs: the agent leaves all others alone."""
AS_ROOT: Final = "root"
"""The value of Metadata.JOBS for jobs that run as root and the machine's own account."""
NO_LOCK: Final = "none"
"""The value of Metadata.TENSORFLOW_LOCK where no hashes are known."""
NO_TENSORFLOW: Final = "none"
"""The value of Metadata.TENSORFLOW for a machine whose jobs bring their own framework."""
LOST_HOST: Final = "lost-host"
"""Cause of a trainer that ended because another host's has: that one knows why."""


class Metadata:
    """Keys of a machine's metadata (`instance/attributes/`). All values are text."""

    STARTUP_SCRIPT: Final = "startup-script"
    AGENT: Final = "agent"
    """The agent as one Python file."""
    LIMITS: Final = "limits"
    """When the TPU is stopped or deleted and whether it is recreated: JSON of Limits."""
    MESSAGES: Final = "messages"
    """What the agent reports, and where: JSON of Messages."""
    JOBS: Final = "training-jobs"
    """Run the jobs of the queue instead of one training, as this account or AS_ROOT."""

    TPU_NAME: Final = "tpu-name"
    """The TPU that the training uses; of several slices, the first."""
    TPU_NAMES: Final = "tpu-names"
    """All slices, separated by commas; only if there are several."""
    TPU_ZONE: Final = "tpu-zone"
    TPU_ZONES: Final = "tpu-zones"
    """All zones that the TPU may be in, the preferred one first; only if there are several."""
    TPU_PROJECT: Final = "tpu-project"
    BUCKET_URL: Final = "bucket-url"
    """gs://BUCKET."""

    WHEEL: Final = "training-wheel"
    WHEEL_SHA256: Final = "training-wheel-sha256"
    BACKEND: Final = "training-backend"
    """jax: each host of the TPU runs the trainer, on JAX. Not set for TensorFlow."""
    ARGUMENTS: Final = "training-args"
    """Further arguments of the trainer: a JSON list."""
    TENSORFLOW: Final = "training-tensorflow"
    """The TensorFlow version that the trainer needs."""
    WHEELS: Final = "training-wheels"
    """A list of wheels for pip, if the package index lacks one."""
    JOB: Final = "training-job"
    """The name of this training; its results are in BUCKET/jobs/NAME."""
    TENSORFLOW_LOCK: Final = "tensorflow-lock"
    """pip's requirements with hashes, or NO_LOCK."""
    COST_NOTE: Final = "cost-note"
    """What the stack keeps costing, for the training's report."""

    OPS_AGENT: Final = "ops-agent"
    """true: install Google's Ops Agent."""
    HEALTH_PORT: Final = "health-port"
    """Where the VM reports its health to its instance group."""
    SERVES_GRPC: Final = "tpu-serves-grpc"
    """true: the TPU VM's runtime (a -pod one) serves gRPC itself."""
    PLUGGABLE: Final = "tpu-pluggable"
    """true: the image's TensorFlow finds the TPU through the plug-in in libtpu."""
    RUNS_TRAINING: Final = "tpu-runs-training"
    """Of TPU VMs. true: worker 0 runs the trainer, and no other machine does."""
    IS_TPU: Final = "tpu-is-this-machine"
    """true: this machine of Compute Engine is a host of the TPU, which no TPU API knows."""
    TPU_FORM: Final = "tpu-form"
    """machine or slice: this VM only recreates a TPU on Compute Engine, and trains nothing."""

    WORKER_NUMBER: Final = "agent-worker-number"
    """Google's: the number of a TPU VM's host."""
    TPU_ENVIRONMENT: Final = "tpu-env"
    """Google's: what a TPU VM's host is told about its TPU."""
    ENDPOINTS: Final = "worker-network-endpoints"
    """Google's: where the hosts of a TPU are, by their number, separated by commas."""


TRAINING_PREFIX: Final = "training-"
"""Metadata whose change needs another boot begins with this."""
NO_REASON_TO_RECREATE: Final = (
    *(Metadata.STARTUP_SCRIPT, Metadata.TENSORFLOW_LOCK, Metadata.AGENT, Metadata.LIMITS),
    *(Metadata.COST_NOTE, Metadata.TPU_ZONES, Metadata.MESSAGES),
)
"""Metadata that differs between releases, limits and prices: another value needs no other TPU."""


class Environment:
    """Environment variables of the agent, the trainer and the jobs' runner."""

    BASE: Final = "TPU_STACK_BASE"
    """Agent: the folder of everything that outlives its process."""
    PYTHON: Final = "TPU_STACK_PYTHON"
    """Runner: the Python that has TensorFlow."""
    PACKAGES: Final = "TPU_STACK_PACKAGES"
    """Runner: the folder of the training package and of this one."""
    JOB_ACCOUNT: Final = "TPU_STACK_JOB_ACCOUNT"
    """Runner: the value of Metadata.JOBS."""
    OUTCOME: Final = "TPU_TRAINING_OUTCOME"
    """Trainer: the file in which it says how it ended."""
    PULSE: Final = "TPU_TRAINING_PULSE"
    """Trainer: the file of its heartbeat."""
    COST_NOTE: Final = "TPU_TRAINING_COST_NOTE"
    """Trainer: the value of Metadata.COST_NOTE."""
    NOTICES: Final = "TPU_TRAINING_NOTICES"
    """Trainer: the object with what Google has announced for the TPU."""


class Unit:
    """systemd units of the machines."""

    AGENT: Final = "tpu-stack-agent"
    JOBS: Final = "jobs"
    NOTICES: Final = "notices"
    HEALTH: Final = "health"
    GRPC: Final = "grpc-tpu-worker"
    OPS_AGENT: Final = "ops-agent-setup"


class Port:
    """TCP ports of the machines."""

    GRPC: Final = 8470
    """Where a TPU's workers serve TensorFlow."""
    HEALTH: Final = 8090
    """Where a VM reports its health to its instance group; free on Debian."""


class Limits(TypedDict, total=False):
    """Metadata.LIMITS; what is missing is not limited.

    `recovery` has the losses of each kind that a day may have (`preemption`, `failure`), and is
    missing where lost TPUs are not recreated. `request` names the queued resource that all TPUs
    come from, `zoneMinutes` how long it waits for capacity in a zone before it tries the next.
    """

    tpus: list[str]
    timeToLiveHours: float
    idleMinutes: float
    turnOff: bool
    recovery: dict[str, int]
    request: str
    zoneMinutes: float


class Messages(TypedDict, total=False):
    """Metadata.MESSAGES: the log that gets an entry for each event, by its full name.

    An entry's `jsonPayload` has `event`, `subject` (one line) and `text`.
    """

    log: str
