"""Routes from methods to handlers, and a call's way along them.

Find the method, check the caller, validate, handle, validate.
"""

import logging
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache
from urllib.parse import unquote

from localcloud.core import access, body as forms, call as calls, projects
from localcloud.core.call import ANONYMOUS, Call, Json, Principal, Request, Response
from localcloud.core.cloud import Cloud
from localcloud.core.discovery import Match, Method, document
from localcloud.core.errors import OLD, ApiError

Handler = Callable[[Cloud, Call], Json | Response | None]
Register = Callable[[Handler], Handler]
Resources = Callable[[Cloud, Call], Sequence[str]]
ProjectOf = Callable[[Json], str]
_APIS: list["Api"] = []
log = logging.getLogger(__name__)
# gcloud names its command in every call. Before it connects it would wait for addresses that exist
# on paper only, for minutes and without a word.
_SSH = re.compile(r"command/gcloud\.\S*\.(ssh|scp|start-iap-tunnel|connect-to-serial-port)(?=\s|$)")


def apis() -> "tuple[Api, ...]":
    """Return the APIs of all modules that have been imported."""
    return tuple(_APIS)


def project_resource(cloud: Cloud, call: Call) -> Sequence[str]:
    """Return the project in the path, for methods whose permission is checked on the project."""
    return (f"projects/{call.project}",)


@dataclass(frozen=True)
class Route:
    """A handler with what the dispatcher checks before it is called.

    Attributes:
        handler: gets the cloud and the call.
        permission: IAM permission; None for methods that every authenticated caller may use.
        resources: names whose IAM policies may grant the permission, such as `projects/p`.
        service: the API that must be enabled in the project (`compute.googleapis.com`), or "".
        anonymous: callers without a token get to a handler without a permission, too.
        project_of: finds the project in the body, for methods whose path names none.
    """

    handler: Handler
    permission: str | None
    resources: Resources
    service: str
    anonymous: bool
    project_of: ProjectOf | None = None


class Api:
    """One API in the versions that the emulator serves.

    Args:
        name: as in the discovery documents, such as `compute`.
        versions: such as `("v1", "beta")`.
        hosts: host names besides the one in the discovery document.
        gated: whether the API must be enabled in the project before it answers.
        anonymous: whether handlers without a permission see to callers without a token.
    """

    def __init__(
        self,
        name: str,
        versions: Sequence[str],
        *,
        hosts: Sequence[str] = (),
        gated: bool = True,
        anonymous: bool = False,
    ) -> None:
        self.name = name
        self.versions = tuple(versions)
        self.hosts = frozenset({f"{name}.googleapis.com", *hosts})
        self.service = f"{name}.googleapis.com" if gated else ""
        self._anonymous = anonymous
        # By version and method; paths outside the document in the order of their registration, in
        # which the first that fits answers.
        self._routes: dict[tuple[str, str], Route] = {}
        self._raw: list[tuple[str, re.Pattern[str], frozenset[str], Method, bool, Route]] = []
        _APIS.append(self)

    def method(
        self,
        *names: str,
        permission: str | None = None,
        resources: Resources = project_resource,
        versions: Sequence[str] | None = None,
        project_of: ProjectOf | None = None,
    ) -> Register:
        """Register a handler for methods by their id without the API's name."""

        def register(handler: Handler) -> Handler:
            route = Route(handler, permission, resources, self.service, self._anonymous, project_of)
            for version in versions or self.versions:
                for name in names:
                    key = (version, name)
                    if key in self._routes:
                        raise ValueError(f"{self.name}.{name} ({version}) has two handlers")
                    self._routes[key] = route
            return handler

        return register

    def raw(
        self,
        verb: str,
        pattern: str,
        *,
        like: str,
        hosts: Sequence[str],
        permission: str | None = None,
        resources: Resources = project_resource,
        upload: bool = False,
    ) -> Register:
        """Register a handler for a path outside the discovery document.

        Args:
            verb: HTTP method.
            pattern: regular expression over the whole percent-encoded path; its named groups
                become the call's parameters.
            like: the method whose id, parameters and scopes apply, such as `objects.get`; a name
                that the document doesn't know stands for itself, with no parameters or scopes.
            hosts: where the path is served.
            permission, resources: as in `method`.
            upload: the handler reads the body itself.
        """

        def register(handler: Handler) -> Handler:
            route = Route(handler, permission, resources, self.service, self._anonymous)
            entry = (verb, re.compile(pattern), frozenset(hosts), self._like(like), upload, route)
            self._raw.append(entry)
            return handler

        return register

    def match(self, verb: str, host: str, path: str) -> tuple[Match, Route | None] | None:
        """Return the method at `path` and its route; the route is None when it has no handler.

        Where versions share a path, the first one with a handler answers.
        """
        unhandled: Match | None = None
        if host in self.hosts:
            for version in self.versions:
                unhandled = document(self.name, version).match(verb, path)
                if unhandled is None:
                    continue
                route = self._routes.get((version, unhandled.method.name))
                if route:
                    return unhandled, route
                break
        for raw_verb, pattern, hosts, method, upload, route in self._raw:
            matched = pattern.fullmatch(path) if verb == raw_verb and host in hosts else None
            if matched:
                params = {name: unquote(value) for name, value in matched.groupdict().items()}
                return Match(method, params, upload), route
        return (unhandled, None) if unhandled else None

    def served(self) -> frozenset[str]:
        """Return the hosts at which it answers."""
        return self.hosts.union(*(entry[2] for entry in self._raw))

    def permissions(self) -> set[str]:
        """Return the permissions that its methods ask for."""
        routes = [*self._routes.values(), *(entry[-1] for entry in self._raw)]
        return {route.permission for route in routes if route.permission}

    def _like(self, name: str) -> Method:
        version = self.versions[0]
        known = document(self.name, version).methods.get(name)
        none = frozenset[str]()
        own = f"{self.name}.{name}"
        return known or Method(self.name, version, own, "", none, none, None, None, none)


@dataclass(frozen=True)
class Collection:
    """The methods of a collection whose permissions are named alike.

    Attributes:
        api: registers them.
        path: the collection in method ids, such as `projects.serviceAccounts`.
        permissions: what their permissions begin with, such as `iam.serviceAccounts`.
        resources: as in `Api.method`.
    """

    api: Api
    path: str
    permissions: str
    resources: Resources = project_resource

    def method(
        self, *names: str, verb: str = "", versions: Sequence[str] | None = None
    ) -> Register:
        """Register a handler for `names`; the permission ends in `verb`, or else in the name."""
        return self.api.method(
            *(f"{self.path}.{name}" for name in names),
            permission=f"{self.permissions}.{verb or names[0]}",
            resources=self.resources,
            versions=versions,
        )


class Dispatcher:
    """Answers requests with the handlers of `apis`.

    It knows nothing of any API: methods and their forms are in the discovery documents, what they
    do and who may is in the routes.
    """

    def __init__(self, cloud: Cloud, apis: Sequence[Api]) -> None:
        self._cloud = cloud
        self._apis: dict[str, list[Api]] = {}
        for api in apis:
            for host in api.served():
                self._apis.setdefault(host, []).append(api)
        # Clients call the same paths again and again.
        self._match = lru_cache(maxsize=1024)(self._first_match)
        self.problems = 0
        """Calls that the emulator did not know, refused as malformed or could not answer."""

    def answer(self, request: Request) -> Response:
        """Return the response to a request; errors come as responses too."""
        name, api, started = "-", "", time.perf_counter()
        try:
            found, route = self._find(request)
            name, api = found.method.id, found.method.api
            self._cloud.faults.inject(name, request.path)
            response = self._call(request, found, route)
            self._cloud.faults.inject(name, request.path, carried_out=True)
        except ApiError as error:
            if error.code >= 500 or (error.code == 404 and name == "-"):
                self._report("%s %s%s: %s", request.verb, request.host, request.path, error.message)
            response = Response.of_json(error.body(api), error.code)
        except ConnectionError:
            # The client went away in the middle of its body, or is to get no answer.
            self._log("lost", name, request, started)
            raise
        except Exception as error:
            self.problems += 1
            log.exception("%s %s%s failed", request.verb, request.host, request.path)
            message = f"the local cloud failed: {type(error).__name__}: {error}"
            response = Response.of_json(ApiError(500, message).body(api), 500)
        # Clients compare it with times in the answer, which are by the cloud's own clock too.
        response.headers["Date"] = _date(int(self._cloud.clock.now()))
        self._log(response.status, name, request, started)
        return response

    def _find(self, request: Request) -> tuple[Match, Route]:
        if refused := _SSH.search(request.headers.get("User-Agent", "")):
            self._report("%s refused", refused[0])
            raise ApiError(
                400,
                f"nothing connects to a machine of the local cloud by {refused[1]}: it is a "
                "process tree of this computer. `localcloud logs NAME` prints its serial port",
            )
        found = self._match(request.verb, request.host, request.path)
        if found is None:
            raise ApiError(
                404,
                f"the local cloud knows no method at {request.verb} "
                f"https://{request.host}{request.path}",
            )
        match, route = found
        # 501, not the 404 of an unknown path: the caller's method is right.
        if route is None:
            raise ApiError(
                501,
                f"the local cloud knows {match.method.id} ({match.method.version}) but does "
                "not implement it",
            )
        return match, route

    def _first_match(self, verb: str, host: str, path: str) -> tuple[Match, Route | None] | None:
        found = (api.match(verb, host, path) for api in self._apis.get(host, ()))
        return next(filter(None, found), None)

    def _call(self, request: Request, found: Match, route: Route) -> Response:
        # Google's order, as its answers show: who calls, is the API enabled, may the token, may the
        # member; only then whether the request is well-formed.
        method = found.method
        caller = self.caller(request)
        if caller is ANONYMOUS and method.scopes and _unchecked(route):
            raise calls.unauthenticated(calls.MISSING)
        params = projects.canonical(self._cloud, found.params)
        call = Call(request, method, params, caller, upload=found.upload)
        if route.project_of:
            # Of these the project, and so what is checked, is known from the body alone.
            call.body = self._read_body(call)
            named = {"projectsId": route.project_of(call.body)}
            call.params |= projects.canonical(self._cloud, named)
        access.require_quota_project(self._cloud, call, route.service)
        access.require_service(self._cloud, call.project, route.service)
        access.require_scope(call.principal, method.scopes, method.id)
        if route.permission:
            resources = route.resources(self._cloud, call)
            access.require(self._cloud, call.principal, route.permission, resources)
        self._validate_query(call)
        if not found.upload and not route.project_of:
            call.body = self._read_body(call)
        with forms.reading(call):
            result = route.handler(self._cloud, call)
        return self._respond(call, result)

    def caller(self, request: Request) -> Principal:
        """Return who sends the request, by its bearer token.

        Raises:
            ApiError: 401 for a token that is not the cloud's, has expired, or belongs to a service
                account that was deleted or disabled.
        """
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        token = token.strip() or "".join(request.query.get("access_token", []))
        if not token:
            return ANONYMOUS
        if scheme and scheme.lower() != "bearer":
            raise ApiError(401, f"unknown authorization scheme {scheme}")
        since = self._cloud.setting(calls.TOKENS)
        principal = self._cloud.tokens.read(token, now=self._cloud.clock.now(), since=since)
        if principal.member.startswith("serviceAccount:"):
            problem = access.account_problem(self._cloud, principal.email)
            if problem:
                raise calls.unauthenticated(f"{calls.INVALID} [{problem}]", "ACCOUNT_STATE_INVALID")
        return principal

    def _validate_query(self, call: Call) -> None:
        # Google's clients send these everywhere; not all documents have them.
        known = call.method.parameters | {"upload_id", "$alt", "userProject"}
        unknown = 'Invalid JSON payload received. Unknown name "{}": Cannot bind query parameter.'
        sent, required = set(call.request.query), call.method.required
        problems = [unknown.format(name) for name in sorted(sent - known)]
        problems += [f"Required parameter: {name}" for name in sorted(required - sent)]
        if problems:
            self._refuse(call, problems)

    def _read_body(self, call: Call) -> Json:
        method, body = call.method, calls.parse_json(call.request.read())
        if method.request is None:
            if body:
                self._report("%s takes no body but got %s", method.id, sorted(body))
                raise ApiError(400, f"{method.id} takes no request body")
            return {}
        known = document(method.api, method.version)
        # The old APIs know one spelling; only those of .proto files take the others.
        if method.api not in OLD:
            body = forms.usual_form(known, method.request, body, call.params)
        if problems := forms.schema_problems(known, method.request, body):
            self._refuse(call, problems)
        read: Json = forms.tracked(body)
        return read

    def _respond(self, call: Call, result: Json | Response | None) -> Response:
        # Bytes and redirects have no schema.
        if isinstance(result, Response):
            return result
        if result is None:
            return Response(204)
        method = call.method
        if method.response:
            known = document(method.api, method.version)
            # The emulator's own mistakes fail here, before a client trips over them.
            problems = forms.schema_problems(known, method.response, result)
            if problems:
                raise ApiError(500, f"the local cloud's {method.id} answers wrongly: {problems}")
            if forms.NUMBERS in call.arg("$alt"):
                result = forms.with_numbers(known, method.response, result)
        mask = call.arg("fields")
        if mask:
            with suppress(ValueError):
                return Response.of_json(calls.apply_mask(calls.parse_mask(mask), result))
            self._refuse(call, [f"Invalid field selection {mask}"])
        return Response.of_json(result)

    def _log(self, status: int | str, name: str, request: Request, started: float) -> None:
        took = (time.perf_counter() - started) * 1000
        self._cloud.log_request(f"{status} {name} {request.verb} {request.path} {took:.0f} ms")

    def _refuse(self, call: Call, problems: list[str]) -> None:
        self._report("request of %s refused: %s", call.method.id, "; ".join(problems))
        raise ApiError(400, "\n".join(problems))

    def _report(self, text: str, *arguments: object) -> None:
        self.problems += 1
        log.error(text, *arguments)


@lru_cache(maxsize=1)
def _date(second: int) -> str:
    return formatdate(second, usegmt=True)


def _unchecked(route: Route) -> bool:
    """Return whether nothing asks a caller without a token for one before the body is looked at.

    Those look after it themselves, once they know from the body what the call is about.
    """
    return bool(route.project_of) or not (route.permission or route.anonymous)
