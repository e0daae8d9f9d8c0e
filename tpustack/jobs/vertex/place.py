"""Where Vertex AI runs a job of a stack: checked before anything is uploaded."""

from __future__ import annotations

from collections.abc import Iterator

from tpu_agent.jobs.queue import Spec
from tpustack.cloud.google import Forbidden
from tpustack.errors import UsageError
from tpustack.jobs.place import google
from tpustack.jobs.spec_options import Given
from tpustack.jobs.vertex.options import SPOT, Asked


def place_of(stack: str | None, asked: Asked, wanted: Given | Spec) -> dict[str, str]:
    """Return a job's place on Vertex AI; empty for a job that it does not run.

    Args:
        stack: whose account and network it gets.
        asked: on what it is to run.
        wanted: what else the job is to be.

    Raises:
        UsageError: with everything that can't be had.
    """
    if not asked.managed:
        if wrong := asked.for_vertex_alone():
            raise UsageError(f"{', '.join(wrong)}: only with --on vertex, which takes them")
        return {}
    from infra.catalog.vertex import managed_tpus, plain_image
    from infra.names import names_of
    from tpustack.stacks.files import load

    settings = load(str(stack))
    vertex = settings.jobs.vertex
    kind = asked.tpu or settings.tpu.accelerator_type
    found = managed_tpus().get(kind)
    own = found.tensorflow if found and wanted.framework == "tensorflow" else plain_image()
    image = asked.image or own
    if problems := [*_problems(kind, image, wanted, spot=asked.spot), *_unqueued(wanted)]:
        raise UsageError("\n".join(problems))
    network = (vertex.network if vertex else None) or ""
    if network:
        _require_peered(network)
    names = names_of(settings, str(stack))
    return {
        "project": settings.project,
        "region": (vertex.region if vertex else None) or settings.region,
        "tpu": kind,
        "image": str(image),
        "account": names.email_of(names.managed_account, settings.project),
        "network": network,
        **({"strategy": SPOT} if asked.spot else {}),
        **({"hosts": str(found.hosts)} if found and found.hosts > 1 else {}),
    }


def place_again(stack: str | None, image: str | None, spec: Spec) -> dict[str, str]:
    """Return where Vertex AI runs a job once more: on the TPU that its record names.

    All else is what the stack's settings and the person say. Raises UsageError as `place_of` does.
    """
    had = spec.vertex
    if not had:
        return {}
    asked = Asked("vertex", had.get("tpu"), image, had.get("strategy") == SPOT)
    place = place_of(stack, asked, spec)
    if image is None and place["image"] != had.get("image"):
        raise UsageError(
            f"--image: the record names the container {had.get('image')!r}, which others may have "
            f"put there; the stack's is {place['image']}. Give it by --image if it is yours"
        )
    return place


def _problems(kind: str, image: str | None, wanted: Given | Spec, *, spot: bool) -> Iterator[str]:
    from infra.catalog.vertex import managed_tpus, why_not_offered, why_not_spot

    found = managed_tpus().get(kind)
    if found is None:
        yield (
            f"--tpu: Vertex AI runs no job of ours on {kind}: {why_not_offered(kind)}. Give one of "
            f"{', '.join(managed_tpus())}"
        )
        return
    if image is None:
        yield (
            f"--image: Google has no container with {wanted.framework} for {kind} on Vertex AI. "
            "Give one that has python3 and the framework"
        )
    if spot and (why := why_not_spot(found)):
        yield f"--spot: Vertex AI gives no spot {kind}: {why}. Leave it out, or give another --tpu"


def _require_peered(network: str) -> None:
    """Raise UsageError for a network that Vertex AI can't use; who may not look asks Vertex AI."""
    from tpustack.live.peering import CURE, why_not_peered

    try:
        why = why_not_peered(google(), network)
    except Forbidden:
        return
    if why:
        raise UsageError(f"jobs.vertex.network: {why}, so that no job starts there. {CURE}")


def _unqueued(wanted: Given | Spec) -> Iterator[str]:
    if wanted.after or wanted.priority:
        yield "--after and --priority: not with --on vertex, which starts each job by itself"
