"""Next to an error of Google's, `pulumi up` says what to do about it.

The known errors are the trainer's, and `tpustack doctor` finds them in a text. It is asked once
something has failed.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pulumi

from infra.credentials import users_session

_DOCTOR_SECONDS = 30.0
_DOCTOR = (sys.executable, "-m", "tpustack", "doctor", "--json", "-")
_GOOGLES = "gcp:"
_TPUS = ("gcp:tpu/v2Vm:V2Vm", "gcp:tpu/node:Node")
_NODE = "https://tpu.googleapis.com/v2/{}"
# Google shows a TPU that it is making at once.
_PATIENCE = 60.0
_ABSENT = 404


def report() -> None:
    """Let each resource of Google's that is declared from here on say the cure when it fails."""
    hooks = pulumi.ResourceHookBinding(on_error=[pulumi.ErrorHook("cure", _tell)])
    waits = pulumi.ResourceHookBinding(before_create=[_watch])

    def with_hooks(
        args: pulumi.ResourceTransformationArgs,
    ) -> pulumi.ResourceTransformationResult | None:
        if not args.type_.startswith(_GOOGLES):
            return None
        own = pulumi.ResourceHookBinding.merge(hooks, waits if args.type_ in _TPUS else None)
        opts = pulumi.ResourceOptions.merge(args.opts, pulumi.ResourceOptions(hooks=own))
        return pulumi.ResourceTransformationResult(args.props, opts)

    pulumi.runtime.register_stack_transformation(with_hooks)


async def _tell(args: pulumi.ErrorHookArgs) -> bool:
    for cure in await asyncio.to_thread(cures, args.errors[0]):
        pulumi.log.warn(f"{args.name}: {cure}.")
    return False  # Nothing is tried again.


def cures(error: str) -> list[str]:
    """Return what to do about the known errors in a text."""
    try:
        done = subprocess.run(
            _DOCTOR, input=error, capture_output=True, text=True, check=False, timeout=_DOCTOR_SECONDS
        )
        found = json.loads(done.stdout)["findings"]
        return list(dict.fromkeys(str(one["cure"]) for one in found))
    except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError):
        return []  # Google's own error must be seen, whatever happens here.


def _watch(args: pulumi.ResourceHookArgs) -> None:
    made = args.new_inputs or {}
    tpu = f"projects/{made['project']}/locations/{made['zone']}/nodes/{made['name']}"
    # A daemon: it ends with the program.
    threading.Thread(target=tell_if_refused, args=(tpu, pulumi.get_stack()), daemon=True).start()


def tell_if_refused(tpu: str, stack: str, sleep: Callable[[float], None] = time.sleep) -> None:
    """Warn if Google has not begun to make a TPU after a minute.

    It answers a quota that is too small with 429, and the provider then asks again, without a word,
    until the time for the creation is up (SendRequest and IsCommonRetryableErrorCode of google-beta
    6.39.0, transport/). A TPU out of the queue has no need of this.
    """
    sleep(_PATIENCE)
    try:
        session = users_session()
        answer = session.get(_NODE.format(tpu), timeout=_DOCTOR_SECONDS) if session else None
    except Exception:  # No error of any kind may fail an update.
        return
    if answer is not None and answer.status_code == _ABSENT:
        pulumi.log.warn(
            f"{tpu.rpartition('/')[2]}: Google refuses to make it, mostly since a quota is too "
            "small. The provider asks again until tpu.timeouts.createMinutes (20) are up, and only "
            f"then says why. `tpustack check --live --stack {stack}` asks Google now."
        )
