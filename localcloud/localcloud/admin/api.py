"""Serves the command line's requests, under /_local/v1/ on the emulator's own port.

Every call must carry the header `Local-Cloud` with a key that is made of the secret in the home
folder: other users of the machine, web pages in a browser and the cloud's own machines lack it.
"""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Callable
from dataclasses import fields

from localcloud.admin import breakage, resources, settings, shell_metadata
from localcloud.core import projects
from localcloud.core.call import Json, Request, Response
from localcloud.core.clock import rfc3339
from localcloud.core.cloud import DEVELOPER, Cloud
from localcloud.core.errors import ApiError, invalid
from localcloud.core.faults import Fault
from localcloud.core.tokens import CLOUD_PLATFORM, Principal
from localcloud.services import reach
from localcloud.services.oauth2 import SCOPES, refresh_token

_ROOT = "/_local/v1/"
# Long enough for a working day and the evening after it.
_TOKEN_LIFETIME = 24 * 3600.0
_FARTHEST = 366 * 24 * 3600.0


class Admin:
    """Answers the emulator's own command line."""

    def __init__(self, cloud: Cloud, port: Callable[[], int], problems: Callable[[], int]) -> None:
        self._cloud = cloud
        self._port = port
        self._problems = problems

    def answer(self, request: Request) -> Response:
        """Return the response to a request that came straight to the emulator's port."""
        if request.path.startswith(shell_metadata.ROOT):
            return shell_metadata.answer(self._cloud, request)
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
            ("POST", "token"): self._token,
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
            "resources": resources.counts(self._cloud),
            "softDeletedBytes": resources.soft_deleted_bytes(self._cloud),
            "machines": {
                key: {
                    "running": self._cloud.machines.running(key),
                    "pids": self._cloud.machines.pids(key),
                }
                for key in machines
            },
            "processes": sorted(self._cloud.machines.processes()),
            "faults": len(self._cloud.faults.items()),
            "settings": settings.all_of(self._cloud),
            "problems": self._problems(),
        }

    def _credentials(self, sent: Json) -> Json:
        principal = Principal(DEVELOPER, SCOPES)
        return {
            "project": projects.DEFAULT_PROJECT,
            "access_token": self._cloud.token(principal, lifetime=_TOKEN_LIFETIME),
            "refresh_token": refresh_token(self._cloud),
        }

    def _token(self, sent: Json) -> Json:
        scopes = frozenset(sent.get("scopes") or [CLOUD_PLATFORM])
        principal = Principal(sent["member"], scopes)
        return {"access_token": self._cloud.token(principal, lifetime=_TOKEN_LIFETIME)}

    def _serial(self, sent: Json) -> Json:
        key = self._machine(sent["machine"])
        text, end = self._cloud.machines.serial(key, int(sent.get("start", 0)))
        return {"machine": key, "contents": text, "next": end}

    def _machine(self, name: str) -> str:
        keys = self._cloud.store.keys("machine")
        found = breakage.named(self._cloud, name)
        if not found:
            known = ", ".join(keys) or "none"
            raise ApiError(404, f"no machine is called {name}; there are: {known}")
        return found[0]

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
        settings.clear(self._cloud)
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
        breakable = breakage.handlers(self._cloud)
        if sent["what"] not in breakable:
            raise invalid(f"{sent['what']!r} can't be broken; {', '.join(breakable)} can")
        breakable[sent["what"]](sent)
        return {}

    def _objects(self, sent: Json) -> Json:
        return {"objects": breakage.objects(self._cloud, sent["name"])}

    def _preempt(self, sent: Json) -> Json:
        delay = float(sent.get("after", 0))
        for action in breakage.preemptions(self._cloud, sent["name"]):
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
        settings.change(self._cloud, sent["name"], sent["value"])
        return {}

    def _unset(self, sent: Json) -> Json:
        settings.forget(self._cloud, sent["name"], sent["part"])
        return {}
