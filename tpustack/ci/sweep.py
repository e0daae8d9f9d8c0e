"""`tpustack ci sweep` and `destroy`: remove stacks that are no longer needed, and name orphans.

An orphan is a resource of a request's stack that exists at Google and is in no state. It is
recognized by all labels that each resource of such a stack gets; one is its mark, which only a
stack of this name in this backend has. Accounts, networks and health checks can have no labels:
their descriptions have the mark (`infra.names.mark_of`). Orphans are not deleted: a state is lost
by a person's hand, or the backend is another one, and no label tells which.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from infra.names import MADE_FOR, MARK, mark_of
from tpustack.ci import deployment, forge, pipeline
from tpustack.ci.result import Outcome, Result, Run, explained, failed
from tpustack.cloud.google import Forbidden, Google, says_disabled
from tpustack.errors import TpustackError

# Bounds what a mistake in the branches or the backend can cost.
MOST_STACKS = 10
_COMPUTE = "https://compute.googleapis.com/compute/v1/projects/{}/{}/{}"
_STORAGE = "https://storage.googleapis.com/storage/v1/b"
_TPUS = "https://tpu.googleapis.com/v2/projects/{}/locations/-"
_ACCOUNTS = "https://iam.googleapis.com/v1/projects/{}/serviceAccounts"
_MADE = re.compile(re.escape(MADE_FOR) + r"(?P<stack>\S+) \((?P<mark>[0-9a-f]+)\)")
Json = Mapping[str, Any]


def sweep(run: Run, branches: set[str], now: datetime) -> list[Result]:
    """Remove the stacks of requests whose branch is gone or whose time is up.

    One that can't be removed stops no other; its failure is a result of its own.
    """
    results: list[Result] = []
    for stack in sorted(filter(pipeline.REQUEST.fullmatch, run.backend.stacks())):
        try:
            tags = run.backend.tags(stack)
            why = pipeline.reason_to_sweep(tags, branches, now)
        except TpustackError as error:
            results.append(failed(stack, str(error)))
            continue
        if why and len(results) < MOST_STACKS:
            remove = _remove_stack if pipeline.tags_are_complete(tags) else _remove_empty
            results.append(explained(stack, lambda: remove(run, stack)).noting(why))  # noqa: B023
        elif why:
            note = f"Left for the next sweep: one removes at most {MOST_STACKS} stacks."
            results.append(Result(stack, Outcome.NO_CHANGE, notes=(why, note)))
    return results


def destroy(run: Run, stack: str, *, delete_data: bool) -> Result:
    """Delete a stack's resources except protected ones; remove the stack if none is left."""
    if stack not in run.backend.stacks():
        return failed(stack, f"the backend has no stack {stack}")
    lost = [] if delete_data else _buckets_with_data(run.backend.stack(stack).resources())
    if lost:
        return failed(
            stack,
            f"{', '.join(lost)}: with forceDestroy and without protection, all objects would go, "
            "too. Nothing was deleted. Deploy bucket.protect: true or bucket.forceDestroy: false "
            "first, or say --delete-data",
        )
    return explained(stack, lambda: _remove_stack(run, stack))


def _buckets_with_data(resources: Iterable[Json]) -> list[str]:
    """Return the buckets that a destruction deletes along with their objects."""
    return [
        f"bucket {(each.get('outputs') or {}).get('name', each['urn'])}"
        for each in resources
        if each["type"] == "gcp:storage/bucket:Bucket"
        and not each.get("protect")
        and not each.get("retainOnDelete")
        and (each.get("outputs") or {}).get("forceDestroy")
    ]


def _remove_empty(run: Run, stack: str) -> Result:
    """Remove a stack of which no run has noted anything yet, so that it has no resources.

    The engine refuses one that has: by then a run that is at work may have made them.
    """
    repair = run.backend.stack(stack).recovery(run.line(stack), forge.has_ended)
    repair.take_up()
    repair.when_unlocked(repair.ask_for_lock)
    run.backend.remove(stack)
    return Result(stack, Outcome.CHANGES, notes=tuple(repair.notes))


def _remove_stack(run: Run, stack: str) -> Result:
    engine, line = run.backend.stack(stack), run.line(stack)
    repair = engine.recovery(line, forge.has_ended)
    repair.take_up()
    done = repair.when_unlocked(lambda: engine.clear(line))
    result = deployment.result_of(stack, done).noting(*repair.notes)
    if done.failure:
        return result
    if left := engine.resources():
        names = ", ".join(f"`{each['urn'].rpartition('::')[2]}`" for each in left)
        return result.noting(f"Left standing because it is protected: {names}.")
    run.backend.remove(stack)
    return replace(result, outcome=Outcome.CHANGES)


# Orphans.


def orphans(run: Run, google: Google, project: str, before: Collection[str]) -> list[Result]:
    """Name what requests' stacks have left that the backend does not have: a failure for each.

    Args:
        run: the run.
        google: the APIs.
        project: where requests' stacks are.
        before: the stacks that the backend had when the run began. Google's lists may still have
            what the run itself has deleted.
    """
    found: dict[str, dict[str, None]] = {}
    for what, stack, resource in _stamped(google, project):
        if stack:
            name = str(resource["name"]).rpartition("/")[2]
            # A request has its labels once for each of its TPUs.
            found.setdefault(stack, {})[f"{what} {name}"] = None
    # Asked afterwards: a stack exists before its first resource.
    known = {*before, *run.backend.stacks()}
    return [
        failed(
            stack,
            f"no state knows of {', '.join(names)}, made for this stack in {project}. Delete them "
            "by hand, or put the state back that knows them (docs/state.md)",
        )
        for stack, names in sorted(found.items())
        if stack not in known
    ]


def _stamped(google: Google, project: str) -> Iterator[tuple[str, str, Json]]:
    """Yield what may have a mark: what it is, the stack of this backend it is for, and itself."""

    def compute(collection: str) -> Iterator[Json]:
        # Names without a folder, such as `disks`, are of all zones and regions (aggregatedList).
        place, _, name = collection.rpartition("/")
        url = _COMPUTE.format(project, place or "aggregated", name)
        return _listed(google, url, "items" if place else name)

    tpus = _TPUS.format(project)
    for entry in _listed(google, f"{tpus}/queuedResources", "queuedResources"):
        for spec in entry.get("tpu", {}).get("nodeSpec", []):
            yield "TPU request", _by_labels(spec["node"]), entry
    for node in _listed(google, f"{tpus}/nodes", "nodes"):
        if not node.get("queuedResource"):
            yield "TPU", _by_labels(node), node
    # The VMs of a group and their template have its labels; the group itself has none.
    for template in compute("global/instanceTemplates"):
        yield "template", _by_labels(template["properties"]), template
    for what, collection in {"VM": "instances", "disk": "disks"}.items():
        for each in compute(collection):
            yield what, _by_labels(each), each
    for bucket in _listed(google, _STORAGE, "items", project=project):
        yield "bucket", _by_labels(bucket), bucket
    # A network's name tells of all that is in it.
    for what, collection in {"health check": "healthChecks", "network": "networks"}.items():
        for each in compute(f"global/{collection}"):
            yield what, _by_description(each), each
    for account in _listed(google, _ACCOUNTS.format(project), "accounts"):
        yield "account", _by_description(account), account


def _listed(google: Google, url: str, field: str, **parameters: str) -> Iterator[Json]:
    """Yield the items of a list; nothing where the API is disabled, which has no resources."""
    try:
        yield from google.pages(url, field, parameters, partial=True)
    except Forbidden as error:
        if not says_disabled(error):
            raise


def _by_labels(labelled: Json) -> str:
    """Return the request's stack of this backend that a resource's labels name, or nothing."""
    labels = labelled.get("labels") or {}
    stack = str(labels.get("tpu-stack", ""))
    own = {"managed-by": "pulumi", "request": stack, MARK: mark_of(stack)}
    return stack if pipeline.REQUEST.fullmatch(stack) and own.items() <= labels.items() else ""


def _by_description(resource: Json) -> str:
    """Return the request's stack that made a resource; empty if none of this backend did."""
    found = _MADE.fullmatch(resource.get("description") or "")
    is_own = found and found["mark"] == mark_of(found["stack"])
    return found["stack"] if found and is_own and pipeline.REQUEST.fullmatch(found["stack"]) else ""
