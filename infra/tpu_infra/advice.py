"""What the program says beyond the engine: what Google alone knows, and cures of its errors.

It asks Google next to the program. Nothing here may fail or delay a deployment: where Google does
not answer, or there are no credentials, the provider itself says why.
"""

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import pulumi

from tpu_infra.apis import apis_of, disabled
from tpu_infra.checks.context import Context
from tpu_infra.checks.software import MANIFEST
from tpu_infra.credentials import users_client
from tpu_infra.settings import StackSettings

_T = TypeVar("_T")
_BUCKET = "https://storage.googleapis.com/storage/v1/b/{}"
# Seconds that a preview waits for all answers, and that a program of ours may take.
LONGEST, _SECONDS = 12.0, 10.0
_FOUND, _MISSING = 200, 404
Preempted = Callable[[], Mapping[str, str]]


def report(settings: StackSettings, context: Context) -> None:
    """Look up, next to the program, what Google alone knows of a stack, and say it."""
    apis = apis_of(settings)
    look_up(lambda: disabled(settings.project, apis), partial(tell_disabled, settings))
    report_data(settings, context.names.bucket)
    report_access(settings, context.names.bucket)
    report_fit(settings, context.root)


def start(ask: Callable[[], _T]) -> Future[_T]:
    """Call `ask` on a thread that the program's end does not wait for.

    An executor's threads would be waited for, however long a host does not answer.
    """
    asked: Future[_T] = Future()
    # Then a caller that stops waiting does not cancel it.
    asked.set_running_or_notify_cancel()

    def run() -> None:
        try:
            asked.set_result(ask())
        except Exception as error:
            asked.set_exception(error)

    threading.Thread(target=run, name="advice", daemon=True).start()
    return asked


def look_up(ask: Callable[[], _T], tell: Callable[[_T], None]) -> None:
    """Call `ask` next to the program, and `tell` with what it returns, unless that takes too long.

    A host that does not answer may have many addresses, each of which is tried. `tell` is called
    on the program's own loop, since the engine's log is not for other threads.
    """
    asked = start(ask)

    async def run() -> None:
        with suppress(asyncio.TimeoutError):
            tell(await asyncio.wait_for(asyncio.wrap_future(asked), LONGEST))

    # An output, since the program waits for all outputs before it ends.
    looked: Any = run()
    pulumi.Output.from_input(looked)


def _warn(warning: str | None) -> None:
    if warning:
        pulumi.log.warn(warning)


# --- TPUs that Google has taken away


def look_for_preempted(settings: StackSettings, names: Sequence[str]) -> Preempted:
    """Look for the stack's TPUs next to the program, by one list.

    A preempted TPU stays, in a state that it never leaves, until it is deleted ("You can't restart
    TPU Spot VMs, and you must recreate them after preemption", "Manage TPU Spot VMs",
    docs.cloud.google.com/tpu/docs/spot, 2025-08-28). Google's provider has no property that differs
    then. A TPU out of the queue does not need this: its resource looks (resources/request.py).

    Returns:
        What waits for the look-up and returns, by the name of each TPU that Google has taken away,
        a text that no other TPU of this name gets. Empty without permission to look, or if a
        preview would wait too long.
    """
    if settings.tpu.queue is not None or settings.is_compute:
        return dict
    looked = start(lambda: _preempted(settings, names))

    def wait() -> Mapping[str, str]:
        with suppress(Exception):
            return looked.result(LONGEST if pulumi.runtime.is_dry_run() else None)
        return {}

    return wait


def _preempted(settings: StackSettings, names: Sequence[str]) -> Mapping[str, str]:
    if (client := users_client()) is None:
        return {}
    from tpu_infra.resources.request import TpuApi, is_gone, standing

    # Where Google can't be reached the provider says so, and a preview should not wait for this.
    api = TpuApi(client, connects=1)
    where = {"project": settings.project, "zone": settings.zone, "nodes": list(names)}
    return {
        name: f"Replaces the TPU of {node.get('createTime')}, which is {node['state']}"
        for name, node in zip(names, standing(api, where), strict=True)
        if node and is_gone(node)
    }


# --- What a preview says


def tell_disabled(settings: StackSettings, names: Sequence[str]) -> None:
    """Say who enables these APIs: the update, or a person."""
    if names and settings.enable_apis:
        pulumi.log.info(
            f"`pulumi up` enables these APIs in {settings.project}: {', '.join(names)}. They stay "
            "enabled after `pulumi destroy`."
        )
    elif names:
        pulumi.log.warn(
            f"Disabled in {settings.project}, and enableApis is false: {', '.join(names)}. Run "
            f"`gcloud services enable {' '.join(names)} --project {settings.project}`."
        )


def report_data(settings: StackSettings, bucket: str) -> None:
    """Warn unless there is a data set to train on."""
    own = any(each.partition("=")[0] == "--data" for each in settings.training.args)
    if not (settings.jobs.enabled or settings.training.data or own):
        look_up(lambda: missing_data(bucket), _warn)


def missing_data(bucket: str) -> str | None:
    """Return the warning that there may be no data set in the bucket; None if there is one."""
    place, at = f"gs://{bucket}/data/{MANIFEST}", quote(f"data/{MANIFEST}", safe="")
    try:
        client, url = users_client(), f"{_BUCKET.format(quote(bucket))}/o/{at}?fields=name"
        status = client.call("GET", url, None)[0] if client else 0
    except Exception as error:
        why = f"{place} can't be read ({type(error).__name__})"
    else:
        if status == _FOUND:
            return None
        why = {
            0: f"{place} can't be checked without Google credentials",
            _MISSING: f"there is no {place}",
        }.get(status, f"{place} can't be read ({status})")
    return (
        f"training.data: (not set), and {why}. Without data the training ends at once. Name a "
        "folder that `tpu-training data convert` wrote"
    )


def report_access(settings: StackSettings, bucket: str) -> None:
    """Warn if people would lose access to a bucket that the stack takes over."""
    if settings.bucket.create:
        look_up(lambda: lost_access(bucket), _warn)


def lost_access(bucket: str) -> str | None:
    """Return the warning if a bucket lacks a protection; None if it can't be read."""
    try:
        client, url = users_client(), f"{_BUCKET.format(quote(bucket))}?fields=iamConfiguration"
        access = client.call("GET", url, None)[1]["iamConfiguration"] if client else {}
        uniform = access["uniformBucketLevelAccess"]["enabled"]
        if uniform and access["publicAccessPrevention"] == "enforced":
            return None
    except Exception:
        return None
    return (
        f"gs://{bucket}: the update turns on uniform bucket-level access and public access "
        "prevention. Anyone who reads it through object ACLs or without credentials loses access"
    )


def report_fit(settings: StackSettings, root: Path) -> None:
    """Warn if the job does not fit; only where `tpu-training compile` has kept answers."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    if settings.training.data and Path(cache, "tpu-stack", "compile").is_dir():
        look_up(lambda: misfit(settings, root), _warn)


def misfit(settings: StackSettings, root: Path) -> str | None:
    """Return the warning that the job does not fit into the TPU; None if it does, or who knows.

    `tpu-training compile` keeps what it found out; nothing is compiled here.
    """
    command = [
        *(sys.executable, "-m", "tpu_training", "compile", "--cached", "--json"),
        *settings.training.args,
        f"--tpu={settings.tpu.accelerator_type}",
        f"--data={root / (settings.training.data or '')}",
    ]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, check=False, timeout=_SECONDS)
        answers = json.loads(done.stdout)["answers"]
        why = answers[0]["misfit"] if answers else None
    except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError):
        return None
    return why and f"training.args: {why}"


# --- What an update says next to an error of Google's
#
# The causes are those that the trainer and `tpustack doctor` know in a text; tpu_core.causes tells
# apart the answers of the TPU API alone. The doctor is asked once something has failed.

_DOCTOR = (sys.executable, "-m", "tpustack", "doctor", "--json", "-")
_DOCTOR_SECONDS = 30.0
_GOOGLES = "gcp:"
_TPUS = ("gcp:tpu/v2Vm:V2Vm", "gcp:tpu/node:Node")
_NODE = "https://tpu.googleapis.com/v2/{}"
_LOOK = "open https://console.cloud.google.com/iam-admin/quotas?project={}"
# Google shows a TPU that it is making at once.
_PATIENCE = 60.0


def watch_errors(stack: str | None) -> None:
    """Let each resource of Google's that is declared from here on say the cure when it fails.

    `stack` is the name of the stack file, if there is one.
    """
    hooks = pulumi.ResourceHookBinding(on_error=[pulumi.ErrorHook("cure", _tell_cures)])

    def watch(args: pulumi.ResourceHookArgs) -> None:
        made = args.new_inputs or {}
        tpu = f"projects/{made['project']}/locations/{made['zone']}/nodes/{made['name']}"
        # A daemon: it ends with the program.
        threading.Thread(target=tell_if_refused, args=(tpu, stack), daemon=True).start()

    waits = pulumi.ResourceHookBinding(before_create=[watch])

    def with_hooks(
        args: pulumi.ResourceTransformationArgs,
    ) -> pulumi.ResourceTransformationResult | None:
        if not args.type_.startswith(_GOOGLES):
            return None
        own = pulumi.ResourceHookBinding.merge(hooks, waits if args.type_ in _TPUS else None)
        opts = pulumi.ResourceOptions.merge(args.opts, pulumi.ResourceOptions(hooks=own))
        return pulumi.ResourceTransformationResult(args.props, opts)

    pulumi.runtime.register_stack_transformation(with_hooks)


async def _tell_cures(args: pulumi.ErrorHookArgs) -> bool:
    # Not of the loop's pool, whose threads may all be registrations that wait for hooks.
    for cure in await asyncio.wrap_future(start(lambda: cures(args.errors[0]))):
        pulumi.log.warn(f"{args.name}: {cure}.")
    return False  # Nothing is tried again.


def cures(error: str) -> list[str]:
    """Return what to do about the known errors in a text."""
    try:
        done = subprocess.run(
            _DOCTOR,
            input=error,
            capture_output=True,
            text=True,
            check=False,
            timeout=_DOCTOR_SECONDS,
        )
        found = json.loads(done.stdout)["findings"]
        ways = (each for one in found for each in (one["translation"], one) if each)
        return list(dict.fromkeys(str(each["fix"]) for each in ways))
    except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError):
        return []  # Google's own error must be seen, whatever happens here.


def tell_if_refused(
    tpu: str, stack: str | None, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Warn if Google has not begun to make a TPU after a minute.

    It answers a quota that is too small with 429, and the provider then asks again, without a word,
    until the time for the creation is up (SendRequest and IsCommonRetryableErrorCode of google-beta
    6.39.0, transport/). A TPU out of the queue has no need of this.
    """
    sleep(_PATIENCE)
    try:
        client = users_client()
        status = client.call("GET", _NODE.format(tpu), None)[0] if client else 0
    except Exception:  # No error of any kind may fail an update.
        return
    if status == _MISSING:
        _, project, *_, name = tpu.split("/")
        ask = f"run `tpustack check --live --stack {stack}`" if stack else _LOOK.format(project)
        pulumi.log.warn(
            f"{name}: Google refuses to create it, usually because a quota is too small. The "
            "provider retries until tpu.timeouts.createMinutes (20) are over, and "
            f"only then shows the reason. To ask Google now, {ask}."
        )
