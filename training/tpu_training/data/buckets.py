"""Environment variables that say how TensorFlow uses a bucket.

By default it doubles its pause between tries of a call from one second to half a minute: a few
errors in a row hold a checkpoint up for minutes. Here it is 8 s at most, and more than two minutes
in all. With libtpu it keeps blocks of 512 MiB, up to 160 GiB, in the host's memory (TensorFlow
2.19.1, xla/tsl/platform/cloud/gcs_file_system.h, read 2026-11-24). A file of a data set is read
once, so nothing is kept here, and one request reads it.

agent/tpu_agent/startup/tpu_vm.sh sets the same for the worker that it starts.
"""

from collections.abc import MutableMapping

SETTINGS = {
    "GCS_RETRY_CONFIG_INIT_DELAY_TIME_US": "250000",
    "GCS_RETRY_CONFIG_MAX_DELAY_TIME_US": "8000000",
    "GCS_RETRY_CONFIG_MAX_RETRIES": "20",
    "GCS_READ_CACHE_BLOCK_SIZE_MB": "32",
    "GCS_READ_CACHE_MAX_SIZE_MB": "0",
}


def set_up_buckets(environ: MutableMapping[str, str]) -> None:
    """Set what the user has not; TensorFlow reads it once, when it is loaded."""
    for name, value in SETTINGS.items():
        environ.setdefault(name, value)
