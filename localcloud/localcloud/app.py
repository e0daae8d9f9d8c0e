"""The emulator's own API for its command line, under /_local/v1/ on its own port.

Every call must carry the header `Local-Cloud` with a key that is made of the secret in the home
folder: other users of the machine, web pages in a browser and the cloud's own machines lack it.
"""

from __future__ import annotations

import hmac
import json
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

from localcloud import faults
from localcloud.core import projects
from localcloud.core.access import ACCOUNT, CUSTOM_ROLE
from localcloud.core.call import Json, Principal, Request, Response
from localcloud.core.clock import Clock, rfc3339
from localcloud.core.cloud import DEVELOPER, Cloud, Fault, Latency, cloud_started
from localcloud.core.dispatch import Dispatcher
from localcloud.core.errors import ApiError, invalid
from localcloud.machines.machine import Network
from localcloud.machines.machines import Machines
from localcloud.server.authority import Authority
from localcloud.server.proxy import Listener
from localcloud.services import all_apis, reach
from localcloud.services.aiplatform import JOB
from localcloud.services.billing import BUDGET
from localcloud.services.compute.api import STORE as COMPUTE
from localcloud.services.federation import POOL, PROVIDER
from localcloud.services.kms import VERSION as KEY_VERSION
from localcloud.services.monitoring import ALERT_POLICY, CHANNEL
from localcloud.services.oauth2 import SCOPES, refresh_token
from localcloud.services.pubsub import TOPIC
from localcloud.services.secretmanager import SECRET
from localcloud.services.storage.records import BUCKET, DELETED_BUCKET, deleted_kind, live_kind
from localcloud.services.tpu import catalog
from localcloud.services.tpu.api import NODE, QUEUED, zone_of

_ROOT = "/_local/v1/"
# Long enough for a working day and the evening after it.
_TOKEN_LIFETIME = 24 * 3600.0
_FARTHEST = 366 * 24 * 3600.0
SHELL_ROOT = "/computeMetadata/v1/"
_FLAVOR = "Metadata-Flavor"
_BY_KIND = {
    BUCKET: "buckets",
    BUDGET: "budgets",
    CHANNEL: "notification channels",
    ALERT_POLICY: "alerting policies",
    TOPIC: "topics",
    SECRET: "secrets",
    NODE: "tpu nodes",
    QUEUED: "tpu queued resources",
}
# Deleted ones can be brought back for a while.
_KEPT_FOR_A_WHILE = {
    CUSTOM_ROLE: "roles",
    POOL: "identity pools",
    PROVIDER: "identity providers",
}
_OWN_ACCOUNTS = ".iam.gserviceaccount.com"


class Admin:
    """Answers the emulator's own command line."""

    def __init__(self, cloud: Cloud, port: Callable[[], int], problems: Callable[[], int]) -> None:
        self._cloud = cloud
        self._port = port
        self._problems = problems

    def answer(self, request: Request) -> Response:
        """Return the response to a request that came straight to the emulator's port."""
        if request.path.startswith(SHELL_ROOT):
            return answer_shell(self._cloud, request)
        try:
            body = self._answer(request)
        except ApiError as error:
            return Response.of_json(error.body(), error.code)
        except (KeyError, TypeError, ValueError) as error:
            problem = invalid(f"{request.verb} {request.path} got a malformed body: {error!r}")
            return Response.of_json(problem.body(), problem.code)
        return Response.of_json(body)

    def _answer(self, request: Request) -> Json:
        key = request.headers.get("Local-Cloud", "")
        if not request.path.startswith(_ROOT) or not hmac.compare_digest(
            key.encode(), self._cloud.admin_key.encode()
        ):
            raise ApiError(
                404,
                "this is the local Google Cloud's proxy; `python -m localcloud env` prints how "
                "clients reach it",
            )
        name = request.path.removeprefix(_ROOT)
        raw = request.read()
        sent: Json = json.loads(raw) if raw else {}
        handlers: dict[tuple[str, str], Callable[[Json], Json]] = {
            ("GET", "status"): self._status,
            ("GET", "credentials"): self._credentials,
            ("POST", "serial"): self._serial,
            ("GET", "faults"): self._faults,
            ("POST", "faults"): self._add_fault,
            ("DELETE", "faults"): self._clear_faults,
            ("GET", "permissions"): self._permissions,
            ("DELETE", "permissions"): self._clear_permissions,
            ("POST", "break"): self._break,
            ("POST", "objects"): self._objects,
            ("DELETE", "fault"): self._lift_fault,
            ("DELETE", "setting"): self._unset,
            ("POST", "preempt"): self._preempt,
            ("POST", "forward"): self._forward,
            ("POST", "reach"): self._reach,
            ("POST", "setting"): self._set,
        }
        handler = handlers.get((request.verb, name))
        if handler is None:
            raise ApiError(404, f"the local cloud has no {request.verb} {request.path}")
        return handler(sent)

    def _status(self, sent: Json) -> Json:
        machines = self._cloud.store.keys("machine")
        return {
            "pid": os.getpid(),
            "port": self._port(),
            "project": projects.DEFAULT_PROJECT,
            "home": str(self._cloud.home),
            "latency": self._cloud.latency_profile,
            "resources": resource_counts(self._cloud),
            "softDeletedBytes": soft_deleted_bytes(self._cloud),
            "machines": {
                key: {
                    "running": self._cloud.machines.running(key),
                    "pids": self._cloud.machines.pids(key),
                }
                for key in machines
            },
            "processes": sorted(self._cloud.machines.processes()),
            "faults": len(self._cloud.faults.items()),
            "settings": faults.all_settings(self._cloud),
            "problems": self._problems(),
        }

    def _credentials(self, sent: Json) -> Json:
        principal = Principal(DEVELOPER, SCOPES)
        return {
            "project": projects.DEFAULT_PROJECT,
            "access_token": self._cloud.token(principal, lifetime=_TOKEN_LIFETIME),
            "refresh_token": refresh_token(self._cloud),
        }

    def _serial(self, sent: Json) -> Json:
        key = faults.require_machines(self._cloud, sent["machine"])[0]
        text, end = self._cloud.machines.serial(key, int(sent.get("start", 0)))
        return {"machine": key, "contents": text, "next": end}

    def _faults(self, sent: Json) -> Json:
        return {key: vars(fault) for key, fault in self._cloud.faults.items()}

    def _add_fault(self, sent: Json) -> Json:
        known = {field.name for field in fields(Fault)}
        if unknown := sorted(set(sent) - known):
            raise invalid(f"a fault has no {', '.join(unknown)}; it has {', '.join(sorted(known))}")
        fault = Fault(**sent)
        if problems := fault.problems():
            raise invalid("; ".join(problems))
        return {"id": self._cloud.faults.add(fault)}

    def _clear_faults(self, sent: Json) -> Json:
        self._cloud.faults.clear()
        faults.clear_settings(self._cloud)
        return {}

    def _permissions(self, sent: Json) -> Json:
        with self._cloud.store.locked():
            return {member: dict(asked) for member, asked in self._cloud.asked.items()}

    def _clear_permissions(self, sent: Json) -> Json:
        with self._cloud.store.locked():
            self._cloud.asked.clear()
        return {}

    def _lift_fault(self, sent: Json) -> Json:
        self._cloud.faults.lift(sent["id"])
        return {}

    def _break(self, sent: Json) -> Json:
        breakable = faults.handlers(self._cloud)
        if sent["what"] not in breakable:
            raise invalid(f"{sent['what']!r} can't be broken; {', '.join(breakable)} can")
        breakable[sent["what"]](sent)
        return {}

    def _objects(self, sent: Json) -> Json:
        return {"objects": faults.objects(self._cloud, sent["name"])}

    def _preempt(self, sent: Json) -> Json:
        delay = float(sent.get("after", 0))
        for action in faults.preemptions(self._cloud, sent["name"]):
            if delay:
                self._cloud.clock.at(self._cloud.clock.now() + delay, action)
            else:
                action()
        return {}

    def _forward(self, sent: Json) -> Json:
        seconds = float(sent["seconds"])
        if not 0 < seconds <= _FARTHEST:
            raise invalid(f"seconds: {seconds:g} is not above 0 and at most {_FARTHEST:.0f}")
        self._cloud.clock.forward(seconds)
        return {"now": rfc3339(self._cloud.clock.now())}

    def _reach(self, sent: Json) -> Json:
        return reach.answer(self._cloud, sent["source"], sent["destination"], sent["protocol"])

    def _set(self, sent: Json) -> Json:
        faults.change_setting(self._cloud, sent["name"], sent["value"])
        return {}

    def _unset(self, sent: Json) -> Json:
        faults.forget_setting(self._cloud, sent["name"], sent["part"])
        return {}


def answer_shell(cloud: Cloud, request: Request) -> Response:
    """Answer as a metadata server does, in plain text, where a shell asks for its place.

    `TPUClusterResolver(NAME)` takes project and zone from the metadata server of the VM that it
    runs on. A shell of the local cloud runs on none, and gets the zone of the newest TPU.
    """
    headers = {_FLAVOR: "Google", "Content-Type": "application/text"}
    if request.headers.get(_FLAVOR) != "Google":
        return Response(403, f"missing required header: {_FLAVOR}:Google\n".encode(), headers)
    value = _shell_values(cloud).get(request.path.removeprefix(SHELL_ROOT))
    if value is None:
        return Response(404, b"a shell has no such metadata\n", headers)
    return Response(200, value.encode(), headers)


def _shell_values(cloud: Cloud) -> dict[str, str]:
    project = projects.DEFAULT_PROJECT
    number = projects.number(project)
    return {
        "instance/maintenance-event": "NONE",
        "instance/zone": f"projects/{number}/zones/{_shell_zone(cloud)}",
        "project/numeric-project-id": number,
        "project/project-id": project,
    }


def _shell_zone(cloud: Cloud) -> str:
    nodes = [record for _, record in cloud.store.items(NODE)]
    newest = max(nodes, key=lambda record: int(record["id"]), default=None)
    return zone_of(newest["name"]) if newest else catalog.zones()[0]


def resource_names(cloud: Cloud) -> dict[str, list[str]]:
    """Return full names by kind; what Google itself makes with a project or an API is left out."""
    found: dict[str, list[str]] = {}
    for kind, shown in _BY_KIND.items():
        for key in cloud.store.keys(kind):
            found.setdefault(shown, []).append(key)
    for bucket in cloud.store.keys(BUCKET):
        for key in cloud.store.keys(live_kind(bucket)):
            found.setdefault("objects", []).append(f"{bucket}/{key}")
    for key in cloud.store.keys(ACCOUNT):
        if not _is_googles(key):
            found.setdefault("service accounts", []).append(key)
    for kind, shown in _KEPT_FOR_A_WHILE.items():
        for key, record in cloud.store.items(kind):
            if record.get("state") != "DELETED" and not record.get("deleted"):
                found.setdefault(shown, []).append(key)
    for key, version in cloud.store.items(KEY_VERSION):
        # Rings and keys can't be deleted, not even on Google: what costs is a version in use.
        if version["state"] in ("ENABLED", "DISABLED"):
            found.setdefault("kms key versions", []).append(key)
    for key, job in cloud.store.items(JOB):
        # One that has ended stays in the list, and costs nothing.
        if "endTime" not in job:
            found.setdefault("custom jobs", []).append(key)
    for key in cloud.store.keys(COMPUTE):
        if not _comes_with_compute(key):
            found.setdefault(key.split("/")[-2], []).append(key)
    return dict(sorted(found.items()))


def resource_counts(cloud: Cloud) -> dict[str, int]:
    """Return how many resources of each kind there are; kinds without any are left out."""
    return dict(Counter({kind: len(keys) for kind, keys in resource_names(cloud).items()}))


def soft_deleted_bytes(cloud: Cloud) -> int:
    """Return how much Google still bills of what was deleted or replaced."""
    buckets = [*cloud.store.keys(BUCKET), *cloud.store.keys(DELETED_BUCKET)]
    kept = (record for bucket in buckets for _, record in cloud.store.items(deleted_kind(bucket)))
    return sum(record["size"] for record in kept)


def _is_googles(key: str) -> bool:
    _, project, _, email = key.split("/")
    return not email.endswith(f"@{project}{_OWN_ACCOUNTS}")


def _comes_with_compute(key: str) -> bool:
    *_, kind, name = key.split("/")
    if kind in ("networks", "subnetworks"):
        return name == "default"
    # A network's routes come and go with it.
    return kind == "routes" or (kind == "firewalls" and name.startswith("default-allow-"))


# --- The running emulator: cloud, APIs and the port they are reached at.


class LocalCloud:
    """A local Google Cloud on one port of the loopback interface.

    Args:
        home: folder of its state.
        port: 0 for any free port.
        clock: the wall clock, or a virtual one in tests.
        latency: how long operations take, see `Cloud`.
    """

    def __init__(
        self,
        home: Path,
        *,
        port: int = 0,
        clock: Clock | None = None,
        latency: Latency = "none",
    ) -> None:
        self.cloud = Cloud(home, clock=clock, latency=latency)
        self.authority = Authority(home / "tls")
        self.dispatcher = Dispatcher(self.cloud, all_apis())
        tls, answer = self.authority.context(), self.dispatcher.answer
        self.cloud.machines = Machines(self.cloud, Network(tls, self.authority.bundle, answer))
        admin = Admin(self.cloud, lambda: self.listener.port, lambda: self.dispatcher.problems)
        self.listener = Listener(port, tls=tls, apis=answer, direct=admin.answer)

    def start(self) -> None:
        """Serve, and resume what an earlier run left unfinished."""
        projects.ensure(self.cloud, projects.DEFAULT_PROJECT, owner=DEVELOPER)
        self.cloud.operations.resume()
        cloud_started.run(self.cloud)
        self.cloud.machines.resume_all()
        self.listener.start()

    def stop(self) -> None:
        """Stop serving; the state stays on disk."""
        self.cloud.machines.suspend_all()
        self.listener.stop()
        self.cloud.close()
