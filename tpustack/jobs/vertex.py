"""Jobs that Vertex AI runs, as custom jobs on TPUs of its own.

The record in the queue is the same as that of other jobs. Others may write it, so what it says of
Vertex AI is not trusted: account, network and image come from the stack's settings, and a custom
job counts only if its own labels and folder say that it is this job.
"""

import contextlib
import dataclasses
import io
import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tpu_agent.bundle import program
from tpu_agent.jobs.queue import FAILED, QUEUED, STOPPED, SUCCEEDED, TIMED_OUT, Job, Queue, Spec
from tpu_core import paths
from tpu_core.google import GoogleError, message, vertex_root
from tpu_infra.names import JOB_ID_LABEL, JOB_LABEL
from tpustack.cloud.google import PEER, Forbidden, Google, NotFound, why_not_peered
from tpustack.errors import TpustackError, UsageError
from tpustack.jobs.source import archive_of, upload
from tpustack.jobs.spec import JobOptions

if TYPE_CHECKING:
    from tpu_infra.catalog import VertexTpu

SPOT = "SPOT"
"""What the API calls the strategy of --spot."""


def place_of(stack: str | None, options: JobOptions) -> dict[str, str]:
    """Return a job's place on Vertex AI; empty for a job that the stack's machine runs.

    Raises:
        UsageError: with every problem.
    """
    if options.on_vertex:
        queued = bool(options.after or options.priority)
        tpu, image = options.tpu, options.image
        return _place(str(stack), options.framework, tpu, image, spot=options.spot, queued=queued)
    given = {"--tpu": options.tpu, "--spot": options.spot or None}
    if wrong := [name for name, value in given.items() if value is not None]:
        raise UsageError(f"{', '.join(wrong)}: only with --on vertex, which takes them")
    return {}


def place_again(stack: str | None, image: str | None, spec: Spec) -> dict[str, str]:
    """Return where Vertex AI runs a job once more: on the TPU that its record names.

    All else comes from the stack's settings and `image`. Raises UsageError as `place_of` does.
    """
    had = spec.vertex
    if not had:
        return {}
    spot, queued = had.get("strategy") == SPOT, bool(spec.after or spec.priority)
    place = _place(str(stack), spec.framework, had.get("tpu"), image, spot=spot, queued=queued)
    if image is None and place["image"] != had.get("image"):
        raise UsageError(
            f"--image: the record names the container {had.get('image')!r}, which others may have "
            f"put there; the stack's is {place['image']}. Give it by --image if it is yours"
        )
    return place


def _place(
    stack: str, framework: str, tpu: str | None, image: str | None, *, spot: bool, queued: bool
) -> dict[str, str]:
    from tpu_infra import catalog
    from tpu_infra.names import names_of
    from tpustack import stacks

    settings = stacks.load(stack)
    vertex = settings.jobs.vertex
    kind = tpu or settings.tpu.accelerator_type
    found = catalog.vertex_tpus().get(kind)
    plain = catalog.vertex_plain_image()
    image = image or (found.tensorflow if found and framework == "tensorflow" else plain)
    problems = []
    if queued:
        problems.append(
            "--after and --priority: not with --on vertex, which starts each job on its own"
        )
    if found is None:
        problems.append(
            f"--tpu: Vertex AI runs no job of ours on {kind}: {catalog.why_not_on_vertex(kind)}. "
            f"Give one of {', '.join(catalog.vertex_tpus())}"
        )
    elif image is None:
        problems.append(
            f"--image: Google has no container with {framework} for {kind} on Vertex AI. Give one "
            "that has python3 and the framework"
        )
    if found and spot and (why := catalog.why_not_spot_on_vertex(found)):
        cure = "Leave it out, or give another --tpu"
        problems.append(f"--spot: Vertex AI gives no spot {kind}: {why}. {cure}")
    if problems:
        raise UsageError("\n".join(problems))
    network = (vertex.network if vertex else None) or ""
    # Where the caller may not look, Vertex AI will refuse it.
    with contextlib.suppress(Forbidden):
        if network and (why := why_not_peered(Google(), network)):
            text = f"jobs.vertex.network: {why}, so that no job starts there. {PEER}"
            raise UsageError(text)
    return {
        "project": settings.project,
        "region": (vertex.region if vertex else None) or settings.region,
        "tpu": kind,
        "image": str(image),
        "account": names_of(settings, stack).vertex_email,
        "network": network,
        **({"strategy": SPOT} if spot else {}),
        **({"hosts": str(found.hosts)} if found and found.hosts > 1 else {}),
    }


# The container first runs the agent, by its digest, as the account that the job runs as.
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
# Of a label's value: https://docs.cloud.google.com/compute/docs/labeling-resources#requirements
_LONGEST_LABEL = 63


def start(queue: Queue, job: Job, where: Mapping[str, str]) -> Job:
    """Have Vertex AI run a queued job at a place, as a custom job with one container; return it.

    Raises:
        TpustackError: Vertex AI refuses it, and its record is withdrawn; or its answer is lost, and
            the record stays.
        GoogleError: the bucket refuses.
    """
    jobs = CustomJobs(Google(), where["project"], where["region"])
    # The agent is one file, which the container reads from the bucket by its digest.
    content = program().encode()
    agent = archive_of(io.BytesIO(content))
    try:
        upload(queue, agent)
        name = jobs.create(where, custom_job(job, where, queue.store.bucket, agent.sha256))
    except Unanswered as error:
        raise TpustackError(
            f"it is not known whether Vertex AI has the job {job.name}: {error}. `tpustack job "
            f"show {job.name}` tells within ten minutes"
        ) from None
    except (TpustackError, GoogleError):
        # Without its record, the same command works once the cause is removed.
        if found := queue.store.look(paths.record(job.name)):
            queue.store.delete(paths.record(job.name), found.generation)
        raise
    named = queue.change(job.name, lambda one: dataclasses.replace(one, custom_job=name))
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
    strategy = {"strategy": where["strategy"]} if "strategy" in where else {}
    spec: dict[str, Any] = {
        "workerPoolSpecs": [pool],
        "serviceAccount": where["account"],
        "baseOutputDirectory": {"outputUriPrefix": f"gs://{bucket}/{paths.folder(job.name)}"},
        # Vertex AI's own retries start the container again, whose agent counts that as an attempt.
        "scheduling": {"disableRetries": job.spec.preemptions == 0, **strategy},
        **({"network": where["network"]} if where.get("network") else {}),
    }
    # Labels take no dots. Names that become equal are told apart by the job's ID.
    label = job.name.replace(".", "-")[:_LONGEST_LABEL]
    labels = {JOB_LABEL: label, JOB_ID_LABEL: job.id}
    return {"displayName": job.name, "jobSpec": spec, "labels": labels}


def _tpu(name: str) -> "VertexTpu":
    # Slow to load; only jobs on Vertex AI need it.
    from tpu_infra.catalog import vertex_tpus

    return vertex_tpus()[name]


# https://docs.cloud.google.com/vertex-ai/docs/reference/rest/v1/JobState
_ENDED = {
    "JOB_STATE_SUCCEEDED": SUCCEEDED,
    "JOB_STATE_FAILED": FAILED,
    "JOB_STATE_CANCELLED": STOPPED,
    "JOB_STATE_EXPIRED": TIMED_OUT,
}
# Seconds after its submission until which a job may still reach Vertex AI; usually it takes a few.
_PATIENCE = 600.0
_NEVER = "the command that submitted it ended before Vertex AI had it"


def refreshed(queue: Queue, job: Job) -> Job:
    """Return a job with what Vertex AI knows beyond its record: that it never ran, or was killed.

    If the answer to its submission was lost, the job gets the name of its custom job; if Vertex AI
    does not have it after _PATIENCE seconds, it ends.

    Raises:
        GoogleError: the bucket refuses.
        TpustackError: Vertex AI refuses, or its record names no place there.
    """
    if job.is_over or not job.spec.vertex:
        return job
    found = custom_jobs(queue, job)
    custom = found[0] if found else {}
    state = _ENDED.get(str(custom.get("state")))
    # None means that the caller may not look: then nothing follows from it.
    is_late = found == [] and time.time() > job.submitted + _PATIENCE

    def update(now: Job) -> Job:
        if now.is_over:
            return now
        named = dataclasses.replace(now, custom_job=now.custom_job or str(custom.get("name", "")))
        if state is not None:
            return named.over(state, time.time(), _reason(custom, job))
        if is_late and now.state == QUEUED and not now.custom_job:
            return named.over(FAILED, time.time(), _NEVER)
        return named

    return queue.change(job.name, update) or job


def custom_jobs(queue: Queue, job: Job) -> list[dict[str, Any]] | None:
    """Return the custom jobs of a job; None if the caller may not look.

    The record says where to look, and others may write it. So a custom job counts only if its own
    ID and output folder are those of this job in this bucket.

    Raises:
        TpustackError: Vertex AI refuses, or the job's record names no place there.
    """
    found = _jobs(job).called(job.name)
    folder = f"gs://{queue.store.bucket}/{paths.folder(job.name)}"
    # None stays None: who may not look has not seen that there is none.
    return found and [
        one
        for one in found
        if one.get("labels", {}).get(JOB_ID_LABEL) == job.id
        and one["jobSpec"].get("baseOutputDirectory") == {"outputUriPrefix": folder}
    ]


def cancel(queue: Queue, job: Job) -> None:
    """Cancel a job on Vertex AI that has not started, or that was told to stop before.

    A running container reads in the job's record that it must end, and keeps what it has.

    Raises:
        TpustackError: Vertex AI refuses.
    """
    if job.spec.vertex and not job.is_over and (job.state == QUEUED or job.stop):
        for one in custom_jobs(queue, job) or ():
            _jobs(job).cancel(one)


def _jobs(job: Job) -> "CustomJobs":
    where = job.spec.vertex
    return CustomJobs(Google(), where.get("project", ""), where.get("region", ""))


def _reason(custom: dict[str, Any], job: Job) -> str:
    """Return why a job has ended on Vertex AI, with its cure where one is known."""
    if custom.get("state") == "JOB_STATE_CANCELLED":
        return "it was cancelled on Vertex AI"
    if not (error := custom.get("error")):
        return ""
    reason = str(error.get("message", "it does not say why"))
    # Google has no codes for these: the words are those of its own troubleshooting pages.
    if "nsufficient" in reason:
        reason += " (no capacity: another region by jobs.vertex.region, or later)"
    elif "mage" in reason and ("pull" in reason or "ound" in reason):
        reason += " (--image: one that Vertex AI's service agent may read)"
    elif "quota" in reason:
        region = job.spec.vertex["region"]
        reason += f" (ask for more in {region} on the page IAM & Admin > Quotas)"
    return f"Vertex AI: {reason}"


_API = "aiplatform.googleapis.com"


class Unanswered(TpustackError):
    """Vertex AI may have the job: its answer was lost."""


class CustomJobs:
    """The custom jobs of a region, by REST. Raises TpustackError for a name that is not a region.

    Google's own client would install grpc and a hundred modules for three calls.
    """

    def __init__(self, google: Google, project: str, region: str) -> None:
        self._google, self._project, self._region = google, project, region
        try:
            root = vertex_root(region)
        except ValueError as error:
            raise TpustackError(f"there are no custom jobs: {error}") from None
        self._parent = f"{root}/projects/{quote(project, safe=':')}/locations/{region}/customJobs"

    def create(self, where: Mapping[str, str], body: dict[str, Any]) -> str:
        """Create a custom job; return its name. Raises Unanswered, or TpustackError with a cure."""
        headers = {"Content-Type": "application/json"}
        data = json.dumps(body).encode()
        try:
            status, _, content = self._google.exchange("POST", self._parent, headers, data)
        except TpustackError as error:
            raise Unanswered(str(error)) from None
        if status >= 500:
            raise Unanswered(f"Vertex AI answers {status}: {message(content)}")
        if status >= 400:
            text = message(content).strip().rstrip(".")
            raise TpustackError(
                f"Vertex AI does not take the job: {self._cure(status, text, where)}. "
                f"Google's answer: {text}. Nothing was queued"
            )
        return str(json.loads(content)["name"])

    def called(self, title: str) -> list[dict[str, Any]] | None:
        """Return the jobs with a display name; None if the caller may not look."""
        try:
            query = {"filter": f'display_name="{title}"'}
            return list(self._google.pages(self._parent, "customJobs", query))
        except (Forbidden, NotFound):
            return None

    def cancel(self, job: Mapping[str, Any]) -> None:
        """Cancel a job that Vertex AI has returned. Raises TpustackError."""
        # Of its name only the number counts: the project in it is one that Google chose.
        number = str(job["name"]).rpartition("/")[2]
        self._google.post(f"{self._parent}/{number}:cancel", {})

    def _cure(self, status: int, text: str, where: Mapping[str, str]) -> str:
        """Return the cure of a refusal, by its status and Google's words."""
        project, region, account = self._project, self._region, where["account"]
        if status == 429:
            tpu = _tpu(where["tpu"])
            quota = tpu.spot_quota if where.get("strategy") == SPOT else tpu.quota
            return (
                f"the project {project} has no quota left for its TPU in {region}. Ask for "
                f"{_API}/{quota} on the page IAM & Admin > Quotas, or wait for other jobs"
            )
        if status == 403:
            by_submitters = "jobs.vertex.submitters gives it"
            cures = {
                "disabled": f"{_API} is disabled in {project}. `pulumi up` with jobs.vertex "
                "enables it",
                "to use project": f"your calls may not count for {project}. Ask for "
                "roles/serviceusage.serviceUsageConsumer there",
                "act as": f"you may not run jobs as {account}. Ask for "
                f"roles/iam.serviceAccountUser on it: {by_submitters}",
                "": f"you may not make custom jobs in {project}. Ask for roles/aiplatform.user: "
                f"{by_submitters}",
            }
            return next(cure for words, cure in cures.items() if words in text)
        if "does not exist" in text and account in text:
            return f"there is no account {account}. `pulumi up` makes it"
        if status == 400 and region in text:
            return f"{region} may have no such TPU. Set jobs.vertex.region, or give --tpu"
        return f"HTTP status {status}"
