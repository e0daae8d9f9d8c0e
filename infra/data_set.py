"""A preview warns where the training would find no data: the trainer ends, the TPU stays."""

from __future__ import annotations

from urllib.parse import quote

import pulumi

from infra import beside
from infra.checks.training import MANIFEST
from infra.enabled import users_session
from infra.settings import StackSettings

_URL = "https://storage.googleapis.com/storage/v1/b/{}/o/{}"
_SECONDS = 10.0
_FOUND, _MISSING = 200, 404


def report(settings: StackSettings, bucket: str) -> None:
    """Warn unless there is a data set to train on; the look-up runs beside the program."""
    if not settings.jobs.enabled and not settings.training.data and not _says_where(settings):
        beside.look(lambda: missing(bucket), _tell)


def _tell(why: str | None) -> None:
    if why is not None:
        pulumi.log.warn(
            f"training.data: (not set), and {why}. Without data the training ends at once: name a "
            "folder that `tpu-training data convert` wrote"
        )


def missing(bucket: str) -> str | None:
    """Return why there may be no data set in the bucket; None if there is one."""
    place = f"gs://{bucket}/data/{MANIFEST}"
    try:
        session = users_session()
        if session is None:
            return f"whether {place} is there can't be looked up without Google credentials"
        url = _URL.format(quote(bucket), quote(f"data/{MANIFEST}", safe=""))
        status = session.get(url, params={"fields": "name"}, timeout=_SECONDS).status_code
    except Exception as error:  # No error of any kind may fail a preview.
        return f"{place} can't be looked up ({type(error).__name__})"
    if status == _FOUND:
        return None
    return f"there is no {place}" if status == _MISSING else f"{place} can't be read ({status})"


def _says_where(settings: StackSettings) -> bool:
    """Whether the trainer's own arguments say where its data is."""
    return any(argument.partition("=")[0] == "--data" for argument in settings.training.args)
