"""The running emulator: cloud, APIs, the port they are reached at, and its own API there.

The emulator's own API, under /_local/v1/, is for its command line. Every call must carry the header
`Local-Cloud` with a key that is made of the secret in the home folder: other users of the machine,
web pages in a browser and the cloud's own machines lack it.
"""

import hmac
import json
import os
from collections.abc import Callable
from pathlib import Path

from localcloud import faults, services
from localcloud.core import SETTING, ApiError, Clock, Cloud, access, invalid, projects, rfc3339
from localcloud.core.call import Json, Principal, Request, Response
from localcloud.core.cloud import DEVELOPER, Fault, Latency, cloud_started
from localcloud.core.registry import Dispatcher
from localcloud.machines.machines import Machines, Network
from localcloud.server import authority, proxy
from localcloud.services import billing, federation, kms, monitoring, oauth2, pubsub, reach
from localcloud.services.aiplatform import JOB
from localcloud.services.compute.api import STORE as COMPUTE
from localcloud.services.storage import records
from localcloud.services.tpu import api, catalog


class LocalCloud:
    """A local Google Cloud on one port of the loopback interface.

    Args:
        home: folder of its state.
        port: 0 for any free port.
        clock: the wall clock, or a virtual one in tests.
        latency: how long operations take, see `Cloud`.
    """

    def __init__(
        self, home: Path, *, port: int = 0, clock: Clock | None = None, latency: Latency = "none"
    ) -> None:
        self.cloud = Cloud(home, clock=clock, latency=latency)
        self.authority = authority.Authority(home / "tls")
        self.dispatcher = Dispatcher(self.cloud, services.all_apis())
        tls, answer = self.authority.context(), self.dispatcher.answer
        self.cloud.machines = Machines(self.cloud, Network(tls, self.authority.bundle, answer))
        admin = Admin(self.cloud, lambda: self.listener.port, lambda: self.dispatcher.problems)
        try:
            self.listener = proxy.Listener(port, tls=tls, apis=answer, direct=admin.answer)
        except OSError:
            # Another one, at another port, could not open the store.
            self.cloud.close()
            raise

    def start(self) -> None:
        """Serve, and resume what an earlier run left unfinished.

        Machines boot before the port opens: a client that finds it open finds them, too.
        """
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


_ROOT = "/_local/v1/"
# Long enough for a working day and the evening after it.
_TOKEN_LIFETIME = 24 * 3600.0
_FARTHEST = 366 * 24 * 3600.0
_SHELL_ROOT = "/computeMetadata/v1/"
_FLAVOR = "Metadata-Flavor"


class Admin:
    """Answers the emulator's own command line.

    Args:
        cloud: what it shows and changes.
        port: returns where the emulator listens, known only after the start.
        problems: returns how many calls were refused as unknown or malformed.
    """

    def __init__(self, cloud: Cloud, port: Callable[[], int], problems: Callable[[], int]) -> None:
        self._cloud = cloud
        self._port = port
        self._problems = problems
        # A handler gets the request's body. A KeyError or TypeError of its own is a malformed body,
        # 400 in `answer`.
        self._handlers: dict[tuple[str, str], Callable[[Json], Json | None]] = {
            ("GET", "status"): lambda sent: self._status(),
            ("GET", "credentials"): lambda sent: self._credentials(),
            ("POST", "serial"): self._serial,
            ("GET", "faults"): lambda sent: {k: vars(fault) for k, fault in cloud.faults.items()},
            ("POST", "faults"): self._add_fault,
            ("DELETE", "faults"): lambda sent: faults.clear(cloud),
            ("DELETE", "fault"): lambda sent: cloud.faults.lift(sent["id"]),
            ("GET", "permissions"): lambda sent: self._permissions(),
            ("DELETE", "permissions"): lambda sent: self._forget_permissions(),
            ("POST", "break"): lambda sent: faults.put(cloud, sent["what"], sent),
            ("POST", "objects"): lambda sent: {"objects": faults.objects(cloud, sent["name"])},
            ("POST", "forward"): self._forward,
            ("POST", "reach"): lambda sent: reach.answer(
                cloud, sent["source"], sent["destination"]
            ),
            ("POST", "setting"): lambda sent: faults.change_setting(
                cloud, sent["name"], sent["value"]
            ),
            ("DELETE", "setting"): lambda sent: faults.forget_setting(
                cloud, sent["name"], sent["part"]
            ),
        }

    def answer(self, request: Request) -> Response:
        """Return the response to a request that came straight to the emulator's port."""
        if request.path.startswith(_SHELL_ROOT):
            return answer_shell(self._cloud, request)
        try:
            return Response.of_json(self._answer(request))
        except ApiError as error:
            problem = error
        except (KeyError, TypeError, ValueError) as error:
            problem = invalid(f"{request.verb} {request.path} got a malformed body: {error!r}")
        return Response.of_json(problem.body(), problem.code)

    def _answer(self, request: Request) -> Json:
        key, expected = request.headers.get("Local-Cloud", ""), self._cloud.admin_key
        # As bytes: of texts `compare_digest` takes only ASCII. A wrong key and a wrong path get the
        # same answer, so that nothing tells a stranger what is here.
        known = hmac.compare_digest(key.encode(), expected.encode())
        if not request.path.startswith(_ROOT) or not known:
            raise ApiError(
                404,
                "this is the local Google Cloud's proxy. Run `python -m localcloud env` for the "
                "variables that clients need",
            )
        handler = self._handlers.get((request.verb, request.path.removeprefix(_ROOT)))
        if handler is None:
            raise ApiError(404, f"the local cloud has no {request.verb} {request.path}")
        raw = request.read()
        return handler(json.loads(raw) if raw else {}) or {}

    def _status(self) -> Json:
        cloud, machines = self._cloud, self._cloud.machines
        return {
            "pid": os.getpid(),
            "port": self._port(),
            "project": projects.DEFAULT_PROJECT,
            "home": str(cloud.home),
            "latency": cloud.latency_profile,
            "resources": {kind: len(keys) for kind, keys in resource_names(cloud).items()},
            "softDeletedBytes": soft_deleted_bytes(cloud),
            "machines": {
                key: {"running": machines.running(key), "pids": machines.pids(key)}
                for key in cloud.store.keys("machine")
            },
            # With those of a machine that is just booting and has no record yet: `stop` waits for
            # the end of all of them.
            "processes": machines.processes(),
            "faults": len(cloud.faults.items()),
            "settings": dict(cloud.store.items(SETTING)),
            "problems": self._problems(),
        }

    def _credentials(self) -> Json:
        token = self._cloud.token(Principal(DEVELOPER, oauth2.SCOPES), lifetime=_TOKEN_LIFETIME)
        return {
            "project": projects.DEFAULT_PROJECT,
            "access_token": token,
            "refresh_token": oauth2.refresh_token(self._cloud),
        }

    def _serial(self, sent: Json) -> Json:
        key = faults.require_machines(self._cloud, sent["machine"])[0]
        text, end = self._cloud.machines.serial(key, int(sent.get("start", 0)))
        return {"machine": key, "contents": text, "next": end}

    def _add_fault(self, sent: Json) -> Json:
        if problems := faults.fault_problems(sent):
            raise invalid("; ".join(problems))
        return {"id": self._cloud.faults.add(Fault(**sent))}

    def _permissions(self) -> Json:
        with self._cloud.store.locked():
            return {member: dict(asked) for member, asked in self._cloud.asked.items()}

    def _forget_permissions(self) -> None:
        # Calls note permissions at the same time, and others read them.
        with self._cloud.store.locked():
            self._cloud.asked.clear()

    def _forward(self, sent: Json) -> Json:
        seconds = float(sent["seconds"])
        if not 0 < seconds <= _FARTHEST:
            raise invalid(f"seconds: {seconds:g} is not above 0 and at most {_FARTHEST:.0f}")
        self._cloud.clock.forward(seconds)
        return {"now": rfc3339(self._cloud.clock.now())}


def answer_shell(cloud: Cloud, request: Request) -> Response:
    """Answer as a metadata server does, in plain text, where a shell asks for its place.

    `TPUClusterResolver(NAME)` takes project and zone from the metadata server of the VM that it
    runs on. A shell of the local cloud runs on none, and gets the zone of the newest TPU.
    """
    headers = {_FLAVOR: "Google", "Content-Type": "application/text"}
    if request.headers.get(_FLAVOR) != "Google":
        return Response(403, f"missing required header: {_FLAVOR}:Google\n".encode(), headers)
    nodes = [record for _, record in cloud.store.items(api.NODE)]
    newest = max(nodes, key=lambda record: int(record["id"]), default=None)
    zone = api.zone_of(newest["name"]) if newest else catalog.zones()[0]
    number = projects.number(projects.DEFAULT_PROJECT)
    values = {
        "instance/maintenance-event": "NONE",
        "instance/zone": f"projects/{number}/zones/{zone}",
        "project/numeric-project-id": number,
        "project/project-id": projects.DEFAULT_PROJECT,
    }
    value = values.get(request.path.removeprefix(_SHELL_ROOT))
    if value is None:
        return Response(404, b"a shell has no such metadata\n", headers)
    return Response(200, value.encode(), headers)


# What there is: `status` counts it, and tests see by it that a destroyed stack leaves nothing.

_BY_KIND = {
    records.BUCKET: "buckets",
    billing.BUDGET: "budgets",
    monitoring.CHANNEL: "notification channels",
    monitoring.ALERT_POLICY: "alerting policies",
    pubsub.TOPIC: "topics",
    api.NODE: "tpu nodes",
    api.QUEUED: "tpu queued resources",
    # Deleted ones can be brought back for a while.
    access.CUSTOM_ROLE: "roles",
    federation.POOL: "identity pools",
    federation.PROVIDER: "identity providers",
}


def resource_names(cloud: Cloud) -> dict[str, list[str]]:
    """Return full names by kind; what Google itself makes with a project or an API is left out."""
    found: dict[str, list[str]] = {}

    def add(kind: str, names: list[str]) -> None:
        if names:
            found.setdefault(kind, []).extend(names)

    for kind, shown in _BY_KIND.items():
        add(shown, [key for key, record in cloud.store.items(kind) if not _is_deleted(record)])
    for bucket in cloud.store.keys(records.BUCKET):
        objects = cloud.store.keys(records.live_kind(bucket))
        add("objects", [f"{bucket}/{key}" for key in objects])
    accounts = cloud.store.keys(access.ACCOUNT)
    add("service accounts", [key for key in accounts if not _is_googles(key)])
    # Rings and keys can't be deleted, not even on Google: what costs is a version in use.
    used = ("ENABLED", "DISABLED")
    keys = [key for key, version in cloud.store.items(kms.VERSION) if version["state"] in used]
    add("kms key versions", keys)
    # A job that has ended stays in the list, and costs nothing.
    jobs = [key for key, job in cloud.store.items(JOB) if "endTime" not in job]
    add("custom jobs", jobs)
    for key in cloud.store.keys(COMPUTE):
        if not _comes_with_compute(key):
            add(key.split("/")[-2], [key])
    return dict(sorted(found.items()))


def soft_deleted_bytes(cloud: Cloud) -> int:
    """Return how much Google still bills of what was deleted or replaced."""
    return sum(record["size"] for _, record in cloud.store.items(records.DELETED))


def _is_deleted(record: Json) -> bool:
    return record.get("state") == "DELETED" or bool(record.get("deleted"))


def _is_googles(key: str) -> bool:
    _, project, _, email = key.split("/")
    return not email.endswith(f"@{project}.iam.gserviceaccount.com")


def _comes_with_compute(key: str) -> bool:
    *_, kind, name = key.split("/")
    if kind in ("networks", "subnetworks"):
        return name == "default"
    # A network's routes come and go with it.
    return kind == "routes" or (kind == "firewalls" and name.startswith("default-allow-"))
