from __future__ import annotations

import json
import threading
from dataclasses import replace

import pytest
import requests

from localcloud.app import LocalCloud
from localcloud.core import projects
from localcloud.core.access import ACCOUNT
from localcloud.core.call import CLOUD_PLATFORM
from localcloud.core.cloud import MachineSpec
from tests.patience import until
from tests.unit.localcloud.machines.conftest import spec

pytestmark = pytest.mark.server

FLAVOR = {"Metadata-Flavor": "Google"}
EMAIL = f"vm@{projects.DEFAULT_PROJECT}.iam.gserviceaccount.com"
ACCOUNT_KEY = f"projects/{projects.DEFAULT_PROJECT}/serviceAccounts/{EMAIL}"
STORAGE = "https://www.googleapis.com/auth/devstorage.read_only"


class Server:
    """A running machine's metadata server."""

    def __init__(self, local_cloud: LocalCloud, machine: MachineSpec) -> None:
        self.cloud = local_cloud.cloud
        self.spec = machine
        self.cloud.machines.boot(machine)
        self.url = f"http://127.0.0.1:{self.cloud.machines.port(machine.key)}"

    def ask(self, path: str, verb: str = "GET", **options: object) -> requests.Response:
        options.setdefault("headers", FLAVOR)
        url = f"{self.url}/computeMetadata/v1/{path}"
        return requests.request(verb, url, timeout=20, **options)  # type: ignore[arg-type]

    def text(self, path: str) -> str:
        response = self.ask(path)
        assert response.status_code == 200, response.text
        return response.text


@pytest.fixture
def server(local_cloud: LocalCloud) -> Server:
    local_cloud.cloud.store.put(ACCOUNT, ACCOUNT_KEY, {"email": EMAIL})
    attributes = {"foo": "bar", "Some-Key": "1"}
    machine = spec(
        attributes=attributes, service_account=EMAIL, scopes=(CLOUD_PLATFORM,), tags=("a", "b")
    )
    return Server(local_cloud, machine)


def test_entries_are_named_as_google_names_them(server: Server) -> None:
    number = projects.number(projects.DEFAULT_PROJECT)
    assert server.text("project/project-id") == projects.DEFAULT_PROJECT
    assert server.text("project/numeric-project-id") == number
    assert server.text("instance/zone") == f"projects/{number}/zones/us-central1-b"
    machine_type = f"projects/{number}/machineTypes/n1-standard-2"
    assert server.text("instance/machine-type") == machine_type
    assert server.text("instance/id") == "42"
    assert server.text("instance/attributes/Some-Key") == "1"
    assert server.text("instance/preempted") == "FALSE"
    assert server.text("instance/maintenance-event") == "NONE"
    assert server.text("instance/scheduling/automatic-restart") == "TRUE"
    assert server.text("instance/service-accounts/default/email") == EMAIL
    assert server.text(f"instance/service-accounts/{EMAIL}/scopes") == CLOUD_PLATFORM
    assert server.ask("instance/tags", params={"alt": "json"}).json() == ["a", "b"]


def test_a_request_without_the_flavor_header_is_refused(server: Server) -> None:
    assert server.ask("instance/id", headers={}).status_code == 403


def test_a_forwarded_request_is_refused(server: Server) -> None:
    forwarded = FLAVOR | {"X-Forwarded-For": "10.0.0.1"}
    assert server.ask("instance/id", headers=forwarded).status_code == 403


def test_a_folder_is_listed_below_its_slash(server: Server) -> None:
    bare = server.ask("instance/attributes", allow_redirects=False)
    assert bare.status_code == 301
    assert bare.headers["Location"].endswith("/computeMetadata/v1/instance/attributes/")
    assert server.text("instance/attributes/") == "Some-Key\nfoo\n"
    assert "service-accounts/\n" in server.text("instance/")
    assert "network-interfaces/\n" not in server.text("instance/attributes/")


def test_a_recursive_answer_is_json(server: Server) -> None:
    everything = server.ask("", params={"recursive": "true"}).json()
    assert everything["instance"]["serviceAccounts"]["default"]["email"] == EMAIL
    assert everything["project"]["projectId"] == projects.DEFAULT_PROJECT


def test_missing_metadata_entries_are_404(server: Server) -> None:
    assert server.ask("instance/attributes/none").status_code == 404
    assert server.ask("instance/none/").status_code == 404
    assert server.ask("instance/attributes/foo", "PUT").status_code == 405


def test_a_waiting_request_ends_with_the_change(server: Server) -> None:
    first = server.ask("instance/attributes/foo")
    answers: list[requests.Response] = []

    def wait() -> None:
        params = {"wait_for_change": "true", "last_etag": first.headers["ETag"]}
        answers.append(server.ask("instance/attributes/foo", params=params))

    waiting = threading.Thread(target=wait)
    waiting.start()
    server.cloud.machines.update(replace(server.spec, attributes={"foo": "new"}))
    waiting.join(20)
    assert answers[0].text == "new"
    assert answers[0].headers["ETag"] != first.headers["ETag"]


def test_a_request_that_waits_too_long_gets_the_unchanged_value(server: Server) -> None:
    params = {"wait_for_change": "true", "timeout_sec": "1"}
    assert server.ask("instance/attributes/foo", params=params).text == "bar"


def test_an_old_etag_is_answered_at_once(server: Server) -> None:
    params = {"wait_for_change": "true", "last_etag": "0"}
    assert server.ask("instance/attributes/foo", params=params).text == "bar"


def test_a_token_acts_as_the_machine_with_its_scopes(server: Server) -> None:
    token = server.ask("instance/service-accounts/default/token").json()
    assert token["token_type"] == "Bearer"
    assert 0 < token["expires_in"] <= 3600
    principal = server.cloud.tokens.read(token["access_token"], now=server.cloud.clock.now())
    assert principal.member == f"serviceAccount:{EMAIL}"
    assert principal.scopes == {CLOUD_PLATFORM}


def test_a_token_can_be_narrowed(server: Server) -> None:
    params = {"scopes": STORAGE}
    token = server.ask("instance/service-accounts/default/token", params=params).json()
    principal = server.cloud.tokens.read(token["access_token"], now=server.cloud.clock.now())
    assert principal.scopes == {STORAGE}


def test_a_token_is_never_widened(server: Server) -> None:
    server.cloud.machines.update(replace(server.spec, scopes=(STORAGE,)))
    params = {"scopes": CLOUD_PLATFORM}
    answer = server.ask("instance/service-accounts/default/token", params=params)
    assert answer.status_code == 400


def test_a_deleted_or_disabled_account_gives_no_token(server: Server) -> None:
    path = "instance/service-accounts/default/token"
    server.cloud.store.put(ACCOUNT, ACCOUNT_KEY, {"email": EMAIL, "disabled": True})
    assert "disabled" in server.ask(path).text
    server.cloud.store.delete(ACCOUNT, ACCOUNT_KEY)
    assert server.ask(path).status_code == 404


def test_a_machine_without_account_has_no_token(local_cloud: LocalCloud) -> None:
    bare = Server(local_cloud, spec())
    assert bare.ask("instance/service-accounts/default/token").status_code == 404
    assert bare.text("instance/service-accounts/") == ""


def test_there_are_no_identity_tokens(server: Server) -> None:
    answer = server.ask("instance/service-accounts/default/identity?audience=x")
    assert answer.status_code == 501


def test_guest_attributes_are_written(local_cloud: LocalCloud) -> None:
    server = Server(local_cloud, spec(attributes={"enable-guest-attributes": "TRUE"}))
    path = "instance/guest-attributes/job/step"
    assert server.ask(path, "PUT", data=b"42").status_code == 200
    assert server.cloud.machines.guest_attributes(server.spec.key) == {"job/step": "42"}
    assert server.ask("instance/guest-attributes/step", "PUT", data=b"1").status_code == 400
    assert server.ask(path).status_code == 501


def test_guest_attributes_are_closed_unless_the_metadata_opens_them(server: Server) -> None:
    assert server.ask("instance/guest-attributes/a/b", "PUT", data=b"1").status_code == 403


def test_the_projects_metadata_is_seen_by_its_machines(server: Server) -> None:
    items = {"items": [{"key": "team", "value": "tpu"}]}
    server.cloud.store.put("compute-project", projects.DEFAULT_PROJECT, items)
    assert server.text("project/attributes/team") == "tpu"


def test_googles_own_client_gets_a_token_inside_the_machine(local_cloud: LocalCloud) -> None:
    local_cloud.cloud.store.put(ACCOUNT, ACCOUNT_KEY, {"email": EMAIL})
    program = (
        "import google.auth, google.auth.transport.requests as t, json\n"
        "credentials, project = google.auth.default()\n"
        "credentials.refresh(t.Request())\n"
        "print('seen', json.dumps([project, credentials.service_account_email, "
        "type(credentials).__module__, credentials.valid]))"
    )
    script = f"cat >p.py <<'END'\n{program}\nEND\npython3 p.py"
    machine = spec(script, service_account=EMAIL, scopes=(CLOUD_PLATFORM,))
    machines = local_cloud.cloud.machines
    machines.boot(machine)
    until(lambda: "Finished running startup scripts." in machines.serial(machine.key)[0])
    text = machines.serial(machine.key)[0]
    assert "startup-script: seen " in text, text
    seen = json.loads(text.partition("startup-script: seen ")[2].partition("\n")[0])
    module = "google.auth.compute_engine.credentials"
    assert seen == [projects.DEFAULT_PROJECT, EMAIL, module, True]
