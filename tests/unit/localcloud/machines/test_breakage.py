"""Machines, tokens and objects that are broken on request."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from localcloud import faults
from localcloud.app import LocalCloud
from localcloud.core.call import CLOUD_PLATFORM, Principal
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError
from localcloud.machines import metadata
from localcloud.testing import Client
from tests.patience import until
from tests.unit.localcloud.machines.conftest import Guest, spec

pytestmark = pytest.mark.server

_RUN = "systemd-run --property=StandardOutput=journal+console"
_COUNTING = f"{_RUN} --unit=counting bash -c 'while :; do sleep 0.05; echo beat; done'\n"
_WRITING = (
    f"{_RUN} --unit=writing bash -c "
    "'while :; do sleep 0.1; { echo x >f; } 2>/dev/null && echo can || echo cannot; done'\n"
)
BUCKET = "storage.googleapis.com/storage/v1/b"


@pytest.fixture
def cloud(local_cloud: LocalCloud) -> Cloud:
    return local_cloud.cloud


def output(cloud: Cloud, key: str) -> str:
    return cloud.machines.serial(key)[0]


def test_a_machine_that_hangs_stands_still_until_it_is_let_go_on(
    cloud: Cloud, guest: Guest
) -> None:
    key = guest.boot(spec(_COUNTING))
    guest.sees(key, "beat")
    faults.put(cloud, "hang", {"name": "m", "on": True})
    before = output(cloud, key)
    time.sleep(0.4)
    assert output(cloud, key).count("beat") - before.count("beat") <= 1
    faults.put(cloud, "hang", {"name": "m", "on": False})
    until(lambda: output(cloud, key).count("beat") > before.count("beat") + 1)


def test_nothing_can_be_written_to_a_full_disk_also_by_what_starts_later(
    cloud: Cloud, guest: Guest
) -> None:
    key = guest.boot(spec(_WRITING))
    guest.sees(key, " can\n")
    faults.put(cloud, "full-disk", {"name": "?", "on": True})
    until(lambda: output(cloud, key).endswith(" cannot\n"))
    faults.put(cloud, "full-disk", {"name": "m", "on": False})
    until(lambda: output(cloud, key).endswith(" can\n"))


def test_processes_are_killed_by_their_command_line(cloud: Cloud, guest: Guest) -> None:
    key = guest.boot(spec("systemd-run --unit=stays -p Restart=always sleep 1234\necho up\n"))
    guest.sees(key, "startup-script: up")
    faults.put(cloud, "kill", {"name": "m", "process": "sleep 1234"})
    guest.sees(key, "killed, signal=9")
    with pytest.raises(ApiError, match="no process of m has a command line with 'no such'"):
        faults.put(cloud, "kill", {"name": "m", "process": "no such"})


def test_only_running_machines_can_be_broken(cloud: Cloud, guest: Guest) -> None:
    key = guest.boot(spec("true"))
    with pytest.raises(ApiError, match="no machine is called other"):
        faults.put(cloud, "hang", {"name": "other", "on": True})
    cloud.machines.halt(key)
    with pytest.raises(ApiError, match="is off: only what runs can fail"):
        faults.put(cloud, "hang", {"name": "m", "on": True})


def test_expired_tokens_are_those_that_a_machine_has_got_by_now(
    local_cloud: LocalCloud, guest: Guest
) -> None:
    cloud, owner = local_cloud.cloud, Client(local_cloud)
    email = "machine@tpu-stack-local.iam.gserviceaccount.com"
    services = "serviceusage.googleapis.com/v1/projects/tpu-stack-local/services"
    owner.post(f"{services}/iam.googleapis.com:enable", {})
    accounts = "iam.googleapis.com/v1/projects/tpu-stack-local/serviceAccounts"
    owner.post(accounts, {"accountId": "machine"})
    machine = spec(service_account=email, scopes=(CLOUD_PLATFORM,))
    guest.boot(machine)
    caller = owner.as_member(f"serviceAccount:{email}")

    def ask(token: object, status: int) -> dict[str, Any]:
        caller.session.headers["Authorization"] = f"Bearer {token}"
        return caller.get(f"{BUCKET}/none", status=status)

    old = metadata.access_token(cloud, machine, [])["access_token"]
    elsewhere = cloud.token(Principal(f"serviceAccount:{email}"))
    ask(old, 404)
    faults.put(cloud, "expire-tokens", {"name": "m"})
    assert ask(old, 401)["error"]["details"][0]["reason"] == "ACCESS_TOKEN_EXPIRED"
    ask(elsewhere, 404)
    ask(metadata.access_token(cloud, machine, [])["access_token"], 404)


def test_objects_are_found_and_deleted_by_a_pattern(local_cloud: LocalCloud) -> None:
    owner, cloud = Client(local_cloud), local_cloud.cloud
    owner.post(BUCKET, {"name": "chaos-bucket"}, project="tpu-stack-local")
    for name in ("jobs/a/lease", "jobs/b/lease", "jobs/b/model"):
        upload = f"https://storage.googleapis.com/upload/storage/v1/b/chaos-bucket/o?name={name}"
        owner.session.post(f"{upload}&uploadType=media", data=b"x").raise_for_status()
    assert faults.objects(cloud, "gs://chaos-*/jobs/b/*") == [
        "chaos-bucket/jobs/b/lease",
        "chaos-bucket/jobs/b/model",
    ]
    faults.put(cloud, "delete-objects", {"name": "*/lease"})
    assert faults.objects(cloud, "*") == ["chaos-bucket/jobs/b/model"]
    with pytest.raises(ApiError, match=re.escape("there is no object */lease")):
        faults.put(cloud, "delete-objects", {"name": "*/lease"})
