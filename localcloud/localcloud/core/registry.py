"""Routes from methods to handlers, with the permissions that they take."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from localcloud.core.call import Call, Json, Response
from localcloud.core.cloud import Cloud
from localcloud.core.discovery import Match, Method, document

Handler = Callable[[Cloud, Call], Json | Response | None]
Register = Callable[[Handler], Handler]
Resources = Callable[[Cloud, Call], Sequence[str]]
ProjectOf = Callable[[Json], str]
_APIS: list["Api"] = []


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
