"""Checks of the bucket, and of the files that the stack uploads to it."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import zip_longest
from pathlib import Path

from tpu_infra.checks.context import Context, without_tpus
from tpu_infra.settings import LifecycleAction, LifecycleRule, StackSettings
from tpu_infra.settings.base import UNSET, Problem, misplaced

_KEY = re.compile(
    r"projects/[^/]+/locations/([^/]+)/keyRings/[\w-]{1,63}/cryptoKeys/[\w-]{1,63}", re.ASCII
)
_SHORTEST_SOFT_DELETE = 7
_MOST_RULES = 100
# Objects that must not be deleted for their age alone: the last checkpoint of a paused job
# (jobs/JOB/checkpoints), the mark of a finished job (without it the job runs again), and what the
# stack uploads. `*` is any one folder.
_NEEDED = (("jobs", "*", "checkpoints"), ("jobs", "*", "finished"), ("data",), ("wheels",))


def check_bucket(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that the bucket is in the TPU's region and its settings agree with each other.

    A bucket can't move: one in the wrong region is found out when it is full.
    """
    bucket = settings.bucket
    if bucket.location and bucket.location.lower() != settings.region:
        yield Problem(
            "bucket.location",
            bucket.location,
            "is not the TPU's region: reading across regions is slow and is billed as egress "
            f"(the zone is {settings.zone})",
            f"Use {settings.region}, or leave it out",
        )
    if not bucket.create:
        yield from _check_given_bucket(settings)
    elif bucket.protect and bucket.force_destroy:
        why, cure = "contradicts bucket.protect: true", "Set one of the two to false"
        yield Problem("bucket.forceDestroy", True, why, cure)


def _check_given_bucket(settings: StackSettings) -> Iterator[Problem]:
    """Check that a bucket the stack does not own has a name and no settings of its owner's."""
    bucket = settings.bucket
    if bucket.name is None:
        why, cure = "is required with bucket.create: false", "Set the name of the bucket to use"
        yield Problem("bucket.name", UNSET, why, cure)
    yield from misplaced(
        {
            "bucket.forceDestroy": bucket.force_destroy,
            "bucket.protect": bucket.protect,
            "bucket.versioning": bucket.versioning,
            "bucket.softDeleteDays": bucket.soft_delete_days,
            "bucket.lifecycle": [rule.written() for rule in bucket.lifecycle] or None,
            "bucket.encryption": bucket.encryption and bucket.encryption.written(),
        },
        "is for a bucket that the stack creates, but bucket.create is false",
        "Remove one of the two",
    )


def problems_alone(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Yield what is wrong with a bucket that components share: it is one, where TPUs are."""
    if not settings.bucket.create:
        why, cure = "leaves nothing to create", "Remove it, or give the bucket's name to the others"
        yield Problem("bucket.create", False, why, cure)
    types = [*context.catalog.accelerators.values()]
    types += [host.tpu for host in context.catalog.hosts.values()]
    zones = dict.fromkeys(zone for each in types for zone in each.zones)
    if settings.zone not in zones:
        yield without_tpus("zone", settings.zone, zones)


def check_soft_delete(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that deleted objects are kept for at least a week, or not at all, as Google has it."""
    days = settings.bucket.soft_delete_days
    if days and days < _SHORTEST_SOFT_DELETE:
        why = "is too short: Google keeps deleted objects for at least 7 days"
        yield Problem("bucket.softDeleteDays", days, why, "Use 7 or more, or 0 to keep nothing")


def check_lifecycle(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that every rule can match something and none deletes what is still needed."""
    rules = settings.bucket.lifecycle
    if len(rules) > _MOST_RULES:
        why, cure = f"are too many: a bucket can have at most {_MOST_RULES}", "Remove some"
        yield Problem("bucket.lifecycle", f"{len(rules)} rules", why, cure)
    for number, rule in enumerate(rules):
        yield from _check_rule(f"bucket.lifecycle[{number}]", rule, settings)


def _check_rule(name: str, rule: LifecycleRule, settings: StackSettings) -> Iterator[Problem]:
    versions = {"noncurrentDays": rule.noncurrent_days, "newerVersions": rule.newer_versions}
    of_old_versions = {key: value for key, value in versions.items() if value is not None}
    if rule.age_days is None and not of_old_versions:
        why, cure = "has no condition", "Set ageDays, noncurrentDays or newerVersions"
        yield Problem(name, rule.written(), why, cure)
    if not settings.bucket.versioning:
        for key, value in of_old_versions.items():
            yield Problem(
                f"{name}.{key}",
                value,
                "is for noncurrent objects, which don't exist with bucket.versioning: false",
                "Set bucket.versioning: true, or use ageDays",
            )
    if rule.action is LifecycleAction.DELETE and rule.age_days and not of_old_versions:
        for path in _NEEDED:
            if _may_hold(rule.prefix or "", path):
                yield Problem(
                    f"{name}.ageDays",
                    rule.age_days,
                    f"would delete {_shown(path)} by age, including what a paused job needs to "
                    "resume",
                    "Set a prefix with it, such as jobs/mnist-1/tensorboard/, or delete only old "
                    "versions with noncurrentDays, or move to nearline instead",
                )
                return


def _may_hold(prefix: str, path: Sequence[str]) -> bool:
    """Return whether an object whose name begins with `prefix` can be `path` or be below it.

    The prefix need not end at a slash: `jobs/mnist` begins the names of several folders.
    """
    *folders, last = prefix.split("/")
    for folder, wanted in zip_longest(folders, path):
        if wanted is None:
            return True
        if folder is None:
            return wanted == "*" or wanted.startswith(last)
        if wanted not in ("*", folder):
            return False
    return True


def _shown(path: Sequence[str]) -> str:
    return "/".join(path).replace("*", "JOB")


def check_encryption(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that the key is named in full and is in the bucket's region."""
    encryption = settings.bucket.encryption
    if encryption is None or encryption.key is None:
        return
    named = _KEY.fullmatch(encryption.key)
    if named is None:
        cure = (
            "Use projects/PROJECT/locations/REGION/keyRings/RING/cryptoKeys/KEY, as "
            "`gcloud kms keys list` shows it"
        )
        why = "is not the full name of a key"
        yield Problem("bucket.encryption.key", encryption.key, why, cure)
    elif named.group(1) != settings.region:
        why = f"is in {named.group(1)}, but the bucket is in {settings.region}"
        cure = f"Use a key in {settings.region}"
        yield Problem("bucket.encryption.key", encryption.key, why, cure)
    if encryption.rotation_days is not None:
        why = "is for a key that the stack creates, but bucket.encryption.key names an existing one"
        cure = "Remove one of the two"
        yield Problem("bucket.encryption.rotationDays", encryption.rotation_days, why, cure)


# --- Secrets stay out of the folder that a stack uploads

# `google-github-actions/auth` and `gcloud auth application-default login` write these.
_NAMES = ("gha-creds-*.json", "application_default_credentials.json")
# The kinds of credentials that google-auth reads (google/auth/_default.py).
_KINDS = frozenset(
    {
        "authorized_user",
        "external_account",
        "external_account_authorized_user",
        "gdch_service_account",
        "impersonated_service_account",
        "service_account",
    }
)
# A service account's key has 2,400 bytes.
_LONGEST = 100_000
_PEM, _PRIVATE = b"-----BEGIN ", b"PRIVATE KEY-----"


def is_around(folder: Path, root: Path) -> bool:
    """Return whether a folder is the project's root, or above it."""
    return root.resolve().is_relative_to(folder.resolve())


def refused_files(folder: Path, files: Iterable[Path]) -> Iterator[str]:
    """Yield why files must not be uploaded, a text each."""
    inside = folder.resolve()
    for path in files:
        name = path.relative_to(folder).as_posix()
        if not path.resolve().is_relative_to(inside):
            yield f"has {name}, a link to a file outside of it"
        elif _is_secret(path):
            yield f"has {name}, which holds credentials"


def _is_secret(path: Path) -> bool:
    if any(fnmatchcase(path.name.lower(), name) for name in _NAMES):
        return True
    try:
        with path.open("rb") as file:
            begin = file.read(len(_PEM))
            if begin == _PEM:
                return _PRIVATE in file.readline(_LONGEST)
        is_json = path.suffix.lower() == ".json" and path.stat().st_size < _LONGEST
        return is_json and _is_key(path)
    except OSError:
        # The upload itself says what is wrong with it.
        return False


def _is_key(path: Path) -> bool:
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and str(found.get("type")) in _KINDS
