"""A job's user and account: what it may do with them, and what it may not."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import active_count as count
from typing import Any

import pytest

from localcloud.core import projects
from tests.unit.agent.jobs.conftest import BUCKET, EMAIL, PROJECT, ZONE, Site, submitted
from tests.unit.agent.jobs.memory import Bucket, Clock, MemoryStore
from tpu_agent.jobs.attempt import Attempt, Supervisor
from tpu_agent.jobs.environment import SetupError
from tpu_agent.jobs.identity import Identity, JobMetadata
from tpu_agent.jobs.queue import Spec
from tpu_infra.grants import JOBS_OBJECTS
from tpustack.jobs.job import job_log

JOBS = f"tpu-job@{PROJECT}.iam.gserviceaccount.com"
# What a hostile job tries, and what it came to: a line of an HTTP status for each.
ATTACK = """
import json, os, urllib.error, urllib.parse, urllib.request

def status(url, method="GET", data=None, **headers):
    request = urllib.request.Request(url, data, headers, method=method)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()

SERVER = "http://" + os.environ["GCE_METADATA_HOST"] + "/computeMetadata/v1/"
FLAVOR = {"Metadata-Flavor": "Google"}
told = status(SERVER + "instance/service-accounts/default/token", **FLAVOR)[1]
bearer = {"Authorization": "Bearer " + json.loads(told)["access_token"]}
storage = "https://storage.googleapis.com/"
bucket = "BUCKET"
nodes = "https://tpu.googleapis.com/v2/projects/PROJECT/locations/ZONE/nodes"

def write(path):
    query = urllib.parse.urlencode({"uploadType": "media", "name": path})
    return status(f"{storage}upload/storage/v1/b/{bucket}/o?{query}", "POST", b"{}", **bearer)[0]

def read(path):
    path = urllib.parse.quote(path, safe="")
    return status(f"{storage}storage/v1/b/{bucket}/o/{path}?alt=media", **bearer)[0]

body = json.dumps({"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.19.0-pod-pjrt"})
print(json.dumps({
    "who": status(SERVER + "instance/service-accounts/default/email", **FLAVOR)[1],
    "its own": [write("jobs/hostile/model/x"), read("jobs/hostile/model/x"), write("data/x")],
    "list": status(f"{storage}storage/v1/b/{bucket}/o?prefix=jobs/", **bearer)[0],
    "see the tpu": status(nodes + "/t", **bearer)[0],
    "make a tpu": status(nodes + "?nodeId=mine", "POST", body.encode(), **bearer)[0],
    "write": [write(path) for path in ("queue/other.json", "agent/state.json", "wheels/x.whl")],
    "read": [read(path) for path in ("queue/hostile.json", "agent/declaration.json")],
    "declared": status(SERVER + "instance/attributes/agent", **FLAVOR)[0],
    "all": "attributes" in status(SERVER + "instance/?recursive=true&alt=json", **FLAVOR)[1],
    "name": status(SERVER + "instance/name", **FLAVOR)[1],
    "no header": status(SERVER + "instance/name")[0],
    "machine": status(SERVER + "instance/service-accounts/MACHINE/token", **FLAVOR)[0],
    "home": os.environ["HOME"].rpartition("/")[2],
}))
"""


def apart(site: Site) -> None:
    """Grant what tpu_infra.components.identity declares for jobs, and what it lets machines do."""
    projects.enable_services(site.cloud.cloud, PROJECT, ["iamcredentials.googleapis.com"])
    accounts = f"iam.googleapis.com/v1/projects/{PROJECT}/serviceAccounts"
    site.client.post(accounts, {"accountId": "tpu-job"})
    tokens = {
        "role": "roles/iam.serviceAccountTokenCreator",
        "members": [f"serviceAccount:{EMAIL}"],
    }
    site.client.post(f"{accounts}/{JOBS}:setIamPolicy", {"policy": {"bindings": [tokens]}})
    manager = f"cloudresourcemanager.googleapis.com/v1/projects/{PROJECT}"
    policy = site.client.post(f"{manager}:getIamPolicy")
    members = [f"serviceAccount:{JOBS}"]
    policy["bindings"] += [{"role": "roles/tpu.viewer", "members": members}]
    site.client.post(f"{manager}:setIamPolicy", {"policy": policy})
    bucket = f"storage.googleapis.com/storage/v1/b/{BUCKET}"
    uniform = {"iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}}}
    site.client.patch(bucket, uniform)
    policy = site.client.get(f"{bucket}/iam")
    objects = f"projects/_/buckets/{BUCKET}/objects/"
    begins = [f'resource.name.startsWith("{objects}{each}")' for each in JOBS_OBJECTS]
    only = {"title": "Only what jobs use", "expression": " || ".join(begins)}
    policy["bindings"] += [
        {"role": "roles/storage.objectUser", "members": members, "condition": only},
        {"role": "roles/storage.legacyBucketReader", "members": members},
    ]
    site.client.put(f"{bucket}/iam", {**policy, "version": 3})


@pytest.mark.server
def test_a_job_does_its_own_work_and_nothing_of_the_machine(site: Site, tmp_path: Path) -> None:
    apart(site)
    site.queue.store.write("agent/declaration.json", b"{}")
    program = tmp_path / "attack.py"
    names = {"BUCKET": BUCKET, "PROJECT": PROJECT, "ZONE": ZONE, "MACHINE": EMAIL}
    text = ATTACK
    for name, value in names.items():
        text = text.replace(name, value)
    program.write_text(text)
    submitted(site, "hostile", f"python {program}; echo made >$ARTIFACTS_DIR/a.txt")
    site.boot(account=JOBS)
    site.ends("hostile", "succeeded")
    said = b"".join(job_log(site.queue, "hostile")).decode()
    assert json.loads(said.splitlines()[-1]) == {
        "who": JOBS,
        "its own": [200, 200, 200],
        "list": 200,
        "see the tpu": 200,
        "make a tpu": 403,
        "write": [403, 403, 403],
        "read": [403, 403],
        "declared": 404,
        "all": False,
        "name": "m",
        "no header": 403,
        "machine": 404,
        "home": "home",
    }
    # What it left is the agent's to bring.
    assert site.queue.store.read("jobs/hostile/artifacts/a.txt") is not None


Call = Callable[[str, str, "str | None"], tuple[int, dict[str, Any]]]
GIVEN = {"accessToken": "t", "expireTime": "2999-01-01T00:00:00Z"}


def identity(call: Call = lambda *_: (200, GIVEN)) -> Identity:
    return Identity(JobMetadata(JOBS, call, lambda path: ("", "")))


GOOGLES_LIBRARY = """
import google.auth, google.auth.transport.requests
credentials, project = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
credentials.refresh(google.auth.transport.requests.Request())
print(project, credentials.service_account_email, credentials.token)
"""


def test_googles_own_library_finds_the_server_and_the_jobs_account() -> None:
    def ask(path: str) -> tuple[str, str]:
        assert path.startswith("project/project-id?")
        return PROJECT, ""

    who = Identity(JobMetadata(JOBS, lambda *_: (200, GIVEN), ask))
    with pytest.MonkeyPatch.context() as patch:
        commands(patch)
        who.enter(lambda: None)
    kept = ("PATH", "LD_LIBRARY_PATH")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    said = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", GOOGLES_LIBRARY],
        env={**environment, **who.variables(Path("/nonexistent"))},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert said.stdout.split() == [PROJECT, JOBS, "t"]


@pytest.mark.slow
def test_a_job_that_connects_without_end_leaves_its_supervisor_room() -> None:
    server, before = JobMetadata(JOBS, lambda *_: (200, GIVEN), lambda _: ("", "")), count()
    address = server.serve()
    many = [socket.create_connection(address) for _ in range(150)]
    # The last one is answered by an end.
    many[-1].settimeout(30)
    assert many[-1].recv(1) == b""
    assert count() - before <= 101
    for one in many:
        one.close()


def commands(monkeypatch: pytest.MonkeyPatch, **codes: int) -> list[list[str]]:
    """Play the machine's programs; return what is run of them."""
    ran: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        ran.append(command)
        code = codes.get(command[0], 0)
        return subprocess.CompletedProcess(command, code, "", f"{command[0]} is not there")

    monkeypatch.setattr("tpu_agent.jobs.identity.subprocess.run", run)
    return ran


def tried(tmp_path: Path, who: Identity) -> Any:
    attempt = Attempt(tmp_path / "one-1")
    ran = f"echo ran >{tmp_path}/ran"
    content = {"job": "one", "number": 1, "bucket": "b", "spec": vars(Spec(ran)), "variables": {}}
    attempt.prepare(content)
    return Supervisor(attempt, lambda _: MemoryStore(Bucket(Clock())), who).run()


@pytest.mark.parametrize("missing", ["useradd", "usermod", "nft", "chown"])
def test_a_machine_that_can_not_keep_a_job_apart_does_not_run_it(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands(monkeypatch, **{missing: 1})
    outcome = tried(tmp_path, identity())
    assert outcome.why == "setup"
    assert f"{missing}: {missing} is not there" in outcome.said
    assert "set jobs.asRoot: true" in outcome.said
    assert not (tmp_path / "ran").exists()


def test_a_user_that_is_there_already_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = commands(monkeypatch, useradd=9)
    identity().enter(lambda: None)
    assert [command[0] for command in ran] == ["useradd", "usermod", "nft"]
    commands(monkeypatch, useradd=4)
    with pytest.raises(SetupError, match="asRoot is false"):
        identity().enter(lambda: None)


def test_no_job_begins_before_its_account_can_be_had_and_a_stop_ends_the_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands(monkeypatch)
    asked = []

    def call(method: str, url: str, body: str | None) -> tuple[int, dict[str, Any]]:
        asked.append(url)
        Attempt(tmp_path / "one-1").end("stopped")
        return 403, {"error": {"message": "not yet"}}

    assert tried(tmp_path, identity(call)).why == "stopped"
    (url,) = asked
    assert url.endswith(f"/serviceAccounts/{JOBS}:generateAccessToken")
    assert not (tmp_path / "ran").exists()


def test_commands_of_a_job_can_not_become_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    command = identity().command(["true"])
    assert command[0] == "setpriv"
    assert {"--reuid=tpu-job", "--regid=tpu-job", "--no-new-privs"} <= set(command)


def test_what_is_taken_back_is_no_jobs_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = commands(monkeypatch)
    Identity().take(tmp_path)
    assert not ran
    identity().take(tmp_path)
    assert [(command[0], command[-2:]) for command in ran] == [
        ("chown", ["0:0", str(tmp_path)]),
        ("chmod", ["u+rw,go-w,a+rX", str(tmp_path)]),
    ]
