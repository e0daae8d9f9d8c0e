"""Say at once if this VM does not get through to a READY TPU: both cost, and set-up is long.

Google documents no client of a TPU VM's port 8470 on another machine.
"""

from __future__ import annotations

from collections.abc import Callable

from infra.startup.agent.google import Call
from infra.startup.agent.tpunames import Place

from . import forms
from .world import World

_LOOK_SECONDS = 5.0
# A -pod runtime serves when it is READY; other TPU VMs install their worker first.
_PATIENCE, _PATIENCE_WITH_SCRIPT = 110.0, 900.0


def watch(
    place: Place, call: Call, name: str, world: World, sleep: Callable[[float], None]
) -> None:
    """Return once the TPU answers, or once it was said that it does not."""
    ready: float | None = None
    while True:
        try:
            found = (forms.node(here, call, name) for here in place.everywhere())
            seen = next((one for one in found if one and one.phase == "ready"), None)
        except OSError:  # Its grants may not count yet; the trainer says what is wrong.
            seen = None
        why = forms.why_ill(seen, world.silent) if seen else None
        if seen and not why:
            return
        ready = (ready or world.now()) if seen else None
        script = "startup-script" in seen.nodes[0].get("metadata", {}) if seen else False
        if ready and world.now() - ready >= (_PATIENCE_WITH_SCRIPT if script else _PATIENCE):
            said = (
                f"{name} is READY, but {why}: this VM can't drive it. Set training.runOn: tpu "
                "(docs/tpu.md#what-stays-unproven), which is for TPU VMs alone, or look at the "
                "firewall rules if network.create is false"
            )
            world.say(said)
            world.tell(said)
            return
        sleep(_LOOK_SECONDS)
