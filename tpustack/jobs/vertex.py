"""Managed training: jobs that Vertex AI runs on TPUs of its own, as custom jobs."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import click

from infra.hosts import vertex_root
from infra.names import JOB_ID_LABEL, JOB_LABEL
from infra.startup.agent.bundle import program
from infra.startup.agent.jobs import layout
from infra.startup.agent.jobs.queue import Queue
from infra.startup.agent.jobs.record import FAILED, QUEUED, STOPPED, SUCCEEDED, TIMED_OUT, Job, Spec
from infra.startup.agent.jobs.store import StoreError, message
from tpustack.cloud.google import Forbidden, Google, NotFound
from tpustack.errors import TpustackError, UsageError
from tpustack.jobs.options import Given
from tpustack.jobs.queue import google
from tpustack.jobs.source import Archive
from tpustack.jobs.submission import upload

if TYPE_CHECKING:
    from infra.catalog.vertex import ManagedTpu


# --- Where Vertex AI runs a job of a stack: checked before anything is uploaded.


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
    from tpustack.live.project import CURE, why_not_peered

    try:
        why = why_not_peered(google(), network)
    except Forbidden:
        return
    if why:
        raise UsageError(f"jobs.vertex.network: {why}, so that no job starts there. {CURE}")


def _unqueued(wanted: Given | Spec) -> Iterator[str]:
    if wanted.after or wanted.priority:
        yield "--after and --priority: not with --on vertex, which starts each job by itself"


# --- Hand a job of the queue over to Vertex AI, as a custom job with one container.

# What the container begins with: the agent, by its digest, as the account that it runs as.
_BOOT = """import hashlib, json, os, sys, tempfile, urllib.request
bucket, digest, job = sys.argv[1:]
def read(url, **headers):
    request = urllib.request.Request(url)
    request.unredirected_hdrs.update(headers)
    return urllib.request.urlopen(request, timeout=60).read()
account = "http://metadata.google.internal/computeMetadata/v1/instance/service-accounts/default"
token = json.loads(read(account + "/token", **{"Metadata-Flavor": "Google"}))["access_token"]
archive = "https://storage.googleapis.com/storage/v1/b/%s/o/archives%%2F%s?alt=media"
program = read(archive % (bucket, digest), Authorization="Bearer " + token)
if hashlib.sha256(program).hexdigest() != digest:
    sys.exit("the agent in the bucket is not what was uploaded")
path = os.path.join(tempfile.mkdtemp(), "agent.py")
with open(path, "wb") as file:
    file.write(program)
os.execv(sys.executable, [sys.executable, path, "managed", bucket, job])
"""
_LONGEST_LABEL = 63


def hand_over(queue: Queue, job: Job, where: Mapping[str, str]) -> Job:
    """Have Vertex AI run a queued job at this place, if it has one; return the job.

    Raises:
        TpustackError: Vertex AI refuses it, and its record is taken back; or no answer says whether
            Vertex AI has it, and the record stays.
        StoreError: the bucket refuses.
    """
    if not where:
        return job
    jobs = CustomJobs(google(), where["project"], where["region"])
    tpu = _tpu(where["tpu"])
    quota = tpu.spot_quota if where.get("strategy") == SPOT else tpu.quota
    try:
        name = jobs.create(custom_job(job, where, queue.store.bucket, _upload_agent(queue)), quota)
    except Unanswered as error:
        raise TpustackError(
            f"it is not known whether Vertex AI has the job {job.name}: {error}. `tpustack job "
            f"show {job.name}` tells within ten minutes"
        ) from None
    except (TpustackError, StoreError):
        _withdraw(queue, job)
        raise
    named = queue.change(job.name, lambda there: dataclasses.replace(there, custom_job=name))
    if named is None or (named.is_over and not named.tries):
        # It was stopped before Vertex AI had it.
        jobs.cancel({"name": name})
    return named or job


def custom_job(job: Job, where: Mapping[str, str], bucket: str, agent: str) -> dict[str, Any]:
    """Return a job as Vertex AI takes it; `agent` is the agent's SHA-256 in the bucket."""
    container = {
        "imageUri": where["image"],
        "command": ["python3", "-c", _BOOT],
        "args": [bucket, agent, job.name],
    }
    pool = {
        "machineSpec": dict(_tpu(where["tpu"]).machine),
        "replicaCount": "1",
        "containerSpec": container,
    }
    spec: dict[str, Any] = {
        "workerPoolSpecs": [pool],
        "serviceAccount": where["account"],
        "baseOutputDirectory": {"outputUriPrefix": f"gs://{bucket}/{layout.folder(job.name)}"},
        "scheduling": {
            "disableRetries": job.spec.preemptions == 0,
            **({"strategy": where["strategy"]} if "strategy" in where else {}),
        },
    }
    if where.get("network"):
        spec["network"] = where["network"]
    label = job.name.replace(".", "-")[:_LONGEST_LABEL]
    labels = {JOB_LABEL: label, JOB_ID_LABEL: job.id}
    return {"displayName": job.name, "jobSpec": spec, "labels": labels}


def _tpu(name: str) -> ManagedTpu:
    # A job of a stack's own machine is handed over to nobody, and needs no table.
    from infra.catalog.vertex import managed_tpus

    return managed_tpus()[name]


def _upload_agent(queue: Queue) -> str:
    """Bring the agent into the bucket unless it is there; return its digest."""
    content = program().encode()
    digest = hashlib.sha256(content).hexdigest()
    upload(queue, Archive(io.BytesIO(content), len(content), digest, frozenset()))
    return digest


def _withdraw(queue: Queue, job: Job) -> None:
    """Take back the record of a job that nobody runs."""
    found = queue.store.look(layout.record(job.name))
    if found is not None:
        queue.store.delete(layout.record(job.name), found.generation)


# --- What Vertex AI knows of a job beyond its record: that it never ran, or was killed.
#
# A record says where to look, and others may write it. So a custom job counts only if its own ID and
# output folder are those of this job in this bucket.

_ENDED = {
    "JOB_STATE_SUCCEEDED": SUCCEEDED,
    "JOB_STATE_FAILED": FAILED,
    "JOB_STATE_CANCELLED": STOPPED,
    "JOB_STATE_EXPIRED": TIMED_OUT,
}
# A job is handed over seconds after it was submitted.
_HANDED_OVER = 600.0
_NEVER = "the command that submitted it ended before Vertex AI had it"


def refreshed(queue: Queue, job: Job, patience: float = _HANDED_OVER) -> Job:
    """Return a job with what Vertex AI tells of it, if its container could tell nothing.

    Where the answer to its submission was lost, it gets its name there; where Vertex AI does not
    have it `patience` seconds after that, it ends.

    Raises:
        StoreError: the bucket refuses.
        TpustackError: Vertex AI refuses, or its record names no place there.
    """
    if job.is_over or not job.spec.vertex:
        return job
    found = custom_jobs(queue, job)
    there = found[0] if found else {}
    state = _ENDED.get(str(there.get("state")))
    is_late = found == [] and time.time() > job.submitted + patience

    def told(now: Job) -> Job:
        if now.is_over:
            return now
        named = dataclasses.replace(now, custom_job=now.custom_job or str(there.get("name", "")))
        if state is not None:
            return named.over(state, time.time(), _reason(there, job))
        if is_late and now.state == QUEUED and not now.custom_job:
            return named.over(FAILED, time.time(), _NEVER)
        return named

    return queue.change(job.name, told) or job


def custom_jobs(queue: Queue, job: Job) -> list[dict[str, Any]] | None:
    """Return what Vertex AI runs as this very job; None if the caller may not look.

    Raises:
        TpustackError: Vertex AI refuses, or the job's record names no place there.
    """
    found = _jobs(job).called(job.name)
    folder = f"gs://{queue.store.bucket}/{layout.folder(job.name)}"
    return found and [
        one
        for one in found
        if one.get("labels", {}).get(JOB_ID_LABEL) == job.id
        and one["jobSpec"].get("baseOutputDirectory") == {"outputUriPrefix": folder}
    ]


def cancel(queue: Queue, job: Job) -> None:
    """Cancel a job on Vertex AI that has not begun, or that was told to stop before.

    A container that runs reads in the job's record that it is to end, and keeps what it has.

    Raises:
        TpustackError: Vertex AI refuses.
    """
    if job.spec.vertex and not job.is_over and (job.state == QUEUED or job.stop):
        for one in custom_jobs(queue, job) or ():
            _jobs(job).cancel(one)


def _jobs(job: Job) -> CustomJobs:
    where = job.spec.vertex
    return CustomJobs(google(), where.get("project", ""), where.get("region", ""))


def _reason(there: dict[str, Any], job: Job) -> str:
    if there.get("state") == "JOB_STATE_CANCELLED":
        return "it was cancelled on Vertex AI"
    if error := there.get("error"):
        return f"Vertex AI: {why_failed(error, job.spec.vertex['region'])}"
    return ""


# --- Vertex AI's custom jobs by its REST API, and what its refusals mean.

_API = "aiplatform.googleapis.com"
_TOO_MANY = 429


class Unanswered(TpustackError):
    """Vertex AI may have taken a job: its answer was lost."""


class CustomJobs:
    """The custom jobs of a region. Raises TpustackError if it is none."""

    def __init__(self, google: Google, project: str, region: str) -> None:
        self._google, self._project, self._region = google, project, region
        try:
            root = vertex_root(region)
        except ValueError as error:
            raise TpustackError(f"there are no custom jobs: {error}") from None
        self._parent = f"{root}/projects/{quote(project, safe=':')}/locations/{region}/customJobs"

    def create(self, body: dict[str, Any], quota: str) -> str:
        """Make a job; return its name. Raises Unanswered, or TpustackError with a cure."""
        account = str(body["jobSpec"].get("serviceAccount", ""))
        headers = {"Content-Type": "application/json"}
        data = json.dumps(body).encode()
        try:
            status, _, content = self._google.exchange("POST", self._parent, headers, data)
        except TpustackError as error:
            raise Unanswered(str(error)) from None
        if status >= 500:
            raise Unanswered(f"Vertex AI answers {status}: {message(content)}")
        if status >= 400:
            said = message(content).strip().rstrip(".")
            raise TpustackError(
                f"Vertex AI does not take the job: {self._cure(status, said, account, quota)}. "
                f"Google's answer: {said}. Nothing was queued"
            )
        return str(json.loads(content)["name"])

    def called(self, title: str) -> list[dict[str, Any]] | None:
        """Return the jobs of that title; None if the caller may not look."""
        try:
            query = {"filter": f'display_name="{title}"'}
            return list(self._google.pages(self._parent, "customJobs", query))
        except (Forbidden, NotFound):
            return None

    def cancel(self, job: Mapping[str, Any]) -> None:
        """Have Vertex AI end a job that it has shown. Raises TpustackError."""
        number = str(job["name"]).rpartition("/")[2]
        self._google.post(f"{self._parent}/{number}:cancel", {}, {})

    def _cure(self, status: int, said: str, account: str, quota: str) -> str:
        """Return what a refusal asks for, by its status and Google's words."""
        if status == _TOO_MANY:
            return (
                f"the project {self._project} has no quota left for its TPU in {self._region}. Ask "
                f"for {_API}/{quota} on the page IAM & Admin > Quotas, or wait for other jobs"
            )
        if status == 403 and "disabled" in said:
            return f"{_API} is disabled in {self._project}. `pulumi up` with jobs.vertex enables it"
        if status == 403 and "to use project" in said:
            return (
                f"your calls may not count for {self._project}. Ask for "
                "roles/serviceusage.serviceUsageConsumer there"
            )
        if status == 403 and "act as" in said:
            return (
                f"you may not run jobs as {account}. Ask for roles/iam.serviceAccountUser on it: "
                "jobs.vertex.submitters gives it"
            )
        if status == 403:
            return (
                f"you may not make custom jobs in {self._project}. Ask for roles/aiplatform.user: "
                "jobs.vertex.submitters gives it"
            )
        if "does not exist" in said and account in said:
            return f"there is no account {account}. `pulumi up` makes it"
        if status == 400 and self._region in said:
            return f"{self._region} may have no such TPU. Set jobs.vertex.region, or give --tpu"
        return f"HTTP status {status}"


def why_failed(error: dict[str, Any], region: str) -> str:
    """Return why a job failed that Vertex AI had taken, with its cure where one is known."""
    said = str(error.get("message", "it does not say why"))
    if "nsufficient" in said:
        return f"{said} (no capacity: another region by jobs.vertex.region, or later)"
    if "mage" in said and ("pull" in said or "ound" in said):
        return f"{said} (--image: one that Vertex AI's service agent may read)"
    if "quota" in said:
        return f"{said} (ask for more in {region} on the page IAM & Admin > Quotas)"
    return said


# --- The options that say whether Vertex AI runs a job, and on what.

SPOT = "SPOT"
"""What the API calls the strategy of --spot."""
_F = TypeVar("_F", bound=Callable[..., Any])
IMAGE = click.option("--image", help="On vertex: the container; by default the framework's.")
_OPTIONS = (
    click.option("--on", type=click.Choice(("stack", "vertex")), default="stack", help="Runs it."),
    click.option("--tpu", help="On vertex: the TPU's type; by default the stack's."),
    IMAGE,
    click.option("--spot", is_flag=True, help="On vertex: a spot TPU, which Google may take away."),
)


def vertex_options(command: _F) -> _F:
    """Declare the options, whose values `Asked` takes."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True)
class Asked:
    """The values of the options."""

    on: str
    tpu: str | None
    image: str | None
    spot: bool

    @property
    def managed(self) -> bool:
        """Whether Vertex AI is to run it."""
        return self.on == "vertex"

    def for_vertex_alone(self) -> list[str]:
        """Return the options given that nobody else has a use for."""
        given = {"--tpu": self.tpu, "--image": self.image, "--spot": self.spot or None}
        return [name for name, value in given.items() if value is not None]


def asked(given: dict[str, Any]) -> Asked:
    """Take the options out of a command's values."""
    return Asked(**{field.name: given.pop(field.name) for field in fields(Asked)})
