"""What TensorFlow's and Google's error texts mean, and what cures them. Data, no TensorFlow."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class KnownError:
    """An error text that users meet: how to recognise it, why it comes, what cures it.

    `wrong_input` tells the person's mistakes from failures of the world.
    """

    name: str
    pattern: re.Pattern[str]
    cause: str
    cure: str
    link: str = ""
    wrong_input: bool = False


def find_known_error(text: str) -> KnownError | None:
    """Return the first known error whose pattern occurs in `text`."""
    return next((known for known in KNOWN_ERRORS if known.pattern.search(text)), None)


def _known(
    name: str, pattern: str, cause: str, cure: str, link: str = "", wrong_input: bool = False
) -> KnownError:
    return KnownError(name, re.compile(pattern, re.I | re.S), cause, cure, link, wrong_input)


_ISSUES = "https://github.com/tensorflow/tensorflow/issues"

# The more special ones come first.
KNOWN_ERRORS = (
    _known(
        "missing-scope",
        r"ACCESS_TOKEN_SCOPE_INSUFFICIENT|insufficient authentication scopes"
        r"|Provided scope\(s\) are not authorized",
        "the VM's access scopes do not cover Cloud Storage",
        "stop the VM, give it the scope https://www.googleapis.com/auth/cloud-platform, and start "
        "it again",
        "https://cloud.google.com/compute/docs/access/service-accounts#accesscopesiam",
    ),
    _known(
        "api-disabled",
        r"SERVICE_DISABLED|has not been used in project .* or it is disabled",
        "a Google API that is needed is disabled in the project",
        "enable it with `gcloud services enable`, then wait a minute",
    ),
    _known(
        "bucket-permission",
        r"storage\.(objects|buckets)\.\w+ (access|permission)|HTTP response code 403",
        "the account that runs the training, or the TPU's own, may not use the bucket",
        "grant it roles/storage.objectAdmin on the bucket (to the TPU's service account too, since "
        "its host reads the data); after a grant wait a minute",
        "https://cloud.google.com/storage/docs/access-control/iam-roles",
    ),
    _known(
        "bucket-credentials",
        r"HTTP response code 401|UNAUTHENTICATED|could not locate the credentials file",
        "Cloud Storage got no valid credentials",
        "run on a VM with a service account, or `gcloud auth application-default login`",
    ),
    _known(
        "bucket-missing",
        r"specified bucket does not exist|bucket .* (not found|does not exist)",
        "the bucket does not exist",
        "check --data and --model-dir; a bucket's name is case-sensitive",
        wrong_input=True,
    ),
    _known(
        "too-many-requests",
        r"HTTP response code 429|rateLimitExceeded|Too Many Requests",
        "the bucket gets too many requests on the same object",
        "write less often: raise --checkpoint_interval",
        "https://cloud.google.com/storage/docs/request-rate",
    ),
    _known(
        "bucket-timeout",
        r"libcurl code (6|7|28|35|52|55|56)\b|Timeout was reached|Could(n't| not) resolve host",
        "Cloud Storage can't be reached in time",
        "check the network (a VM without external address needs Private Google Access); the job "
        "goes on from its last checkpoint when it is started again",
    ),
    _known(
        "no-gs-file-system",
        r"File system scheme '\[?gs\]?' not implemented",
        "this TensorFlow has no gs:// (an extra from 2.20 on)",
        "pip install 'tensorflow[gcs-filesystem]'",
        wrong_input=True,
    ),
    _known(
        "tpu-reads-local-files",
        r"File system scheme '\[local\]' not implemented",
        "a TPU's host can't read or write files of this machine",
        "put the data into a bucket and give --data=gs://…",
        "https://github.com/tensorflow/models/issues/8265",
        wrong_input=True,
    ),
    _known(
        "corrupt-data",
        r"corrupted record at|truncated record at|DataLossError|Input to reshape is a tensor with"
        r"|Could not parse example input|Key: (image|label)\.",
        "a data file is corrupt or is not what the manifest says",
        "copy the data set there again, or write it with `python -m training data convert`",
        wrong_input=True,
    ),
    _known(
        "label-out-of-range",
        r"Received a label value of",
        "a label in the data set is not below the manifest's number of classes",
        "write the data set again with `python -m training data convert`",
        wrong_input=True,
    ),
    _known(
        "version-mismatch",
        r"Op type not registered|neither a type of a primitive operation",
        "the TPU's worker runs another TensorFlow version than this process",
        "make them the same: the TPU's runtime version and the installed tensorflow",
        f"{_ISSUES}/40622",
    ),
    _known(
        "no-tpu-kernels",
        r"No OpKernel was registered to support Op '?\w*(TPU|Distributed)",
        "this TensorFlow was built without TPU support",
        "on a TPU VM install tensorflow-tpu instead of tensorflow",
        f"{_ISSUES}/96203",
    ),
    _known(
        "no-tpu-found",
        r"TPUs not found in the cluster|Device /job:\w+/\S*TPU_SYSTEM\S* unknown device",
        "this machine, or the worker, has no TPU that TensorFlow can use",
        "use --tpu=local on a TPU VM only, with tensorflow-tpu installed and no other process on "
        "the TPU",
    ),
    _known(
        "worker-restarted",
        r"Unable to find a context_id|Unable to find the relevant tensor remote_handle",
        "the TPU's worker was restarted (a preemption or maintenance)",
        "start the job again in a new process; it goes on from its last checkpoint",
        f"{_ISSUES}/47460",
    ),
    _known(
        "tpu-failed",
        r"Unable to enqueue when not opened|State is: FAILED",
        "the TPU stopped working",
        "restart or recreate the TPU and start the job again; it goes on from its last checkpoint",
    ),
    _known(
        "worker-lost",
        r"Socket closed|failed to connect to all addresses|Connection (reset|refused)"
        r"|Connection timed out|UnavailableError|recvmsg:|GOAWAY|Failed to connect to",
        "the connection to the TPU's worker is lost (a preemption, maintenance, or a crash)",
        "check the TPU's state and start the job again; it goes on from its last checkpoint",
        f"{_ISSUES}/38190",
    ),
    _known(
        "device-memory",
        r"Ran out of memory in memory space (vmem|hbm)|RESOURCE_EXHAUSTED|ResourceExhausted"
        r"|OOM when allocating",
        "the step does not fit into the device's memory",
        "lower --global_batch_size, or use more replicas",
    ),
    _known(
        "host-memory",
        r"std::bad_alloc|MemoryError|Cannot allocate memory",
        "this machine's memory is full",
        "use a machine type with more memory",
    ),
    _known(
        "disk-full",
        r"No space left on device",
        "the disk is full; the last good checkpoint is still there",
        "free some space, or put --model-dir into a bucket",
    ),
    _known(
        "not-writable",
        r"Read-only file system|Permission ?denied|(not|is) a directory"
        r"|No such file or directory",
        "a file or directory can't be found, read or written by this user",
        "check --model-dir and --data, and their owner and mode",
        wrong_input=True,
    ),
)
