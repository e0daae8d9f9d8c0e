"""Where Vertex AI runs a job of a stack: checked before anything is uploaded."""

from __future__ import annotations

from collections.abc import Iterator

from tpustack.errors import UsageError
from tpustack.jobs.spec_options import Given


def place_of(
    stack: str | None,
    tpu: str | None,
    image: str | None,
    wanted: Given,
    *,
    managed: bool,
) -> dict[str, str]:
    """Return a job's place on Vertex AI; empty for a job that it does not run.

    Args:
        stack: whose account and network it gets.
        tpu: the TPU's type; None for the stack's.
        image: the container; None for that of the framework.
        wanted: what else the job is to be.
        managed: whether Vertex AI is to run it.

    Raises:
        UsageError: with everything that can't be had.
    """
    if not managed:
        given = {"--tpu": tpu, "--image": image}
        if wrong := [name for name, value in given.items() if value is not None]:
            raise UsageError(f"{', '.join(wrong)}: only with --on vertex, which takes them")
        return {}
    from infra.catalog.vertex import managed_tpus, plain_image
    from infra.names import names_of
    from tpustack.stacks.files import load

    settings = load(str(stack))
    vertex = settings.jobs.vertex
    kind = tpu or settings.tpu.accelerator_type
    found = managed_tpus().get(kind)
    own = found.tensorflow if found and wanted.framework == "tensorflow" else plain_image()
    if problems := [*_problems(kind, image or own, wanted.framework), *_unqueued(wanted)]:
        raise UsageError("\n".join(problems))
    names = names_of(settings, str(stack))
    return {
        "project": settings.project,
        "region": (vertex.region if vertex else None) or settings.region,
        "tpu": kind,
        "image": str(image or own),
        "account": names.email_of(names.managed_account, settings.project),
        "network": (vertex.network if vertex else None) or "",
    }


def _problems(kind: str, image: str | None, framework: str) -> Iterator[str]:
    from infra.catalog.vertex import managed_tpus

    if kind not in managed_tpus():
        yield (
            f"--tpu: Vertex AI runs no job of ours on {kind} (one host of its custom jobs has "
            f"{', '.join(managed_tpus())}). Give one of these"
        )
    elif image is None:
        yield (
            f"--image: Google has no container with {framework} for {kind} on Vertex AI. Give one "
            "that has python3 and the framework"
        )


def _unqueued(wanted: Given) -> Iterator[str]:
    if wanted.after or wanted.priority:
        yield "--after and --priority: not with --on vertex, which starts each job by itself"
