"""Answers every API call: find the method, check the caller, validate, handle, validate."""

import logging
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from email.utils import formatdate

from localcloud.core import access, projects
from localcloud.core import body as forms
from localcloud.core import call as calls
from localcloud.core.call import ANONYMOUS, Call, Json, Principal, Request, Response
from localcloud.core.cloud import Cloud
from localcloud.core.discovery import Match, document
from localcloud.core.errors import OLD, ApiError
from localcloud.core.registry import Api, Route

log = logging.getLogger(__name__)
requests_log = logging.getLogger("localcloud.requests")
# gcloud names its command in every call. Before it connects it would wait for addresses that exist
# on paper only, for minutes and without a word.
_SSH = re.compile(r"command/gcloud\.\S*\.(ssh|scp|start-iap-tunnel|connect-to-serial-port)(?=\s|$)")


class Dispatcher:
    """Answers requests with the handlers of `apis`.

    It knows nothing of any API: methods and their forms are in the discovery documents, what they
    do and who may is in the routes.
    """

    def __init__(self, cloud: Cloud, apis: Sequence[Api]) -> None:
        self._cloud = cloud
        self._apis = tuple(apis)
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
            _log_request("lost", name, request, started)
            raise
        except Exception as error:
            self.problems += 1
            log.exception("%s %s%s failed", request.verb, request.host, request.path)
            message = f"the local cloud failed: {type(error).__name__}: {error}"
            response = Response.of_json(ApiError(500, message).body(api), 500)
        # Clients compare it with times in the answer, which are by the cloud's own clock too.
        response.headers["Date"] = formatdate(self._cloud.clock.now(), usegmt=True)
        _log_request(response.status, name, request, started)
        return response

    def _find(self, request: Request) -> tuple[Match, Route]:
        if refused := _SSH.search(request.headers.get("User-Agent", "")):
            self._report("%s refused", refused[0])
            raise ApiError(
                400,
                f"nothing connects to a machine of the local cloud by {refused[1]}: it is a "
                "process tree of this computer. `localcloud logs NAME` prints its serial port",
            )
        for api in self._apis:
            found = api.match(request.verb, request.host, request.path)
            if found is None:
                continue
            match, route = found
            if route is None:
                raise ApiError(
                    501,
                    f"the local cloud knows {match.method.id} ({match.method.version}) but does "
                    "not implement it",
                )
            return match, route
        raise ApiError(
            404,
            f"the local cloud knows no method at {request.verb} "
            f"https://{request.host}{request.path}",
        )

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

    def _refuse(self, call: Call, problems: list[str]) -> None:
        self._report("request of %s refused: %s", call.method.id, "; ".join(problems))
        raise ApiError(400, "\n".join(problems))

    def _report(self, text: str, *arguments: object) -> None:
        self.problems += 1
        log.error(text, *arguments)


def _log_request(status: int | str, name: str, request: Request, started: float) -> None:
    took = (time.perf_counter() - started) * 1000
    requests_log.info("%s %s %s %s %.0f ms", status, name, request.verb, request.path, took)


def _unchecked(route: Route) -> bool:
    """Return whether nothing asks a caller without a token for one before the body is looked at.

    Those look after it themselves, once they know from the body what the call is about.
    """
    return bool(route.project_of) or not (route.permission or route.anonymous)
