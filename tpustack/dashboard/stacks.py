"""Stacks as the page shows them: what they are, what they cost, whether they have drifted."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from infra.catalog import Catalog
from infra.cost import of_stack
from tpustack.dashboard.places import Place
from tpustack.errors import UsageError

Json = dict[str, Any]


def stack(place: Place, catalog: Catalog) -> Json:
    """Return what is known of a place without asking any cloud or engine."""
    settings = place.settings
    about = {"name": place.name, "bucket": place.bucket, "problem": place.problem}
    if settings is None:
        return {**about, "isStack": bool(place.problem)}
    hour = of_stack(settings, place.name, catalog).configured
    return {
        **about,
        "isStack": True,
        "project": settings.project,
        "zone": settings.zone,
        "architecture": settings.architecture.value,
        "tpu": settings.tpu.accelerator_type,
        "capacity": settings.tpu.capacity.value,
        "jobs": settings.jobs.enabled,
        "hour": f"{hour.hour:f}",
        "complete": hour.complete,
    }


def drift(place: Place) -> Json:
    """Compare a stack's state with the cloud by the engine, which writes neither.

    Raises:
        UsageError: the place is no stack.
        TpustackError: there is no engine, or the backend can't be read.
    """
    from tpustack.ci.drift import drift as compare
    from tpustack.ci.job import Job
    from tpustack.engine.backend import users_own

    if place.settings is None:
        raise UsageError(f"{place.name} is a bucket, not a stack: only a stack has a state")
    backend = users_own()
    with tempfile.TemporaryDirectory() as folder:
        job = Job(backend, backend.root, Path(folder), _unheard)
        (result,) = compare(job, [place.name])
    return result.as_json()


def _unheard(_line: str) -> None:
    """Pass over the engine's output: the result says what matters."""
