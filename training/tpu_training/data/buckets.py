"""How TensorFlow repeats calls of a bucket that fail, which its environment says.

By itself it doubles its pause from one second to half a minute: a few errors in a row hold a
checkpoint up for minutes. Here it is 8 s at most, and more than two minutes in all.
"""

from collections.abc import MutableMapping

_SETTINGS = {
    "GCS_RETRY_CONFIG_INIT_DELAY_TIME_US": "250000",
    "GCS_RETRY_CONFIG_MAX_DELAY_TIME_US": "8000000",
    "GCS_RETRY_CONFIG_MAX_RETRIES": "20",
}


def set_retries(environ: MutableMapping[str, str]) -> None:
    """Set what the user has not; TensorFlow reads it once, when it is loaded."""
    for name, value in _SETTINGS.items():
        environ.setdefault(name, value)
