"""Discovery documents, for clients that fetch them; TPU_API_DISCOVERY_URL lets TensorFlow do so."""

from __future__ import annotations

import re

from localcloud.core.call import Call, Response
from localcloud.core.cloud import Cloud
from localcloud.core.discovery import source
from localcloud.core.errors import ApiError, invalid
from localcloud.core.registry import Api

API = Api("discovery", ("v1",), hosts=("www.googleapis.com",), gated=False)
_HOSTS = tuple(
    f"{api}.googleapis.com"
    for api in ("cloudresourcemanager", "compute", "iam", "serviceusage", "storage", "tpu")
)


def _document(api: str, version: str) -> Response:
    if not re.fullmatch(r"\w+", api) or not re.fullmatch(r"\w+", version):
        raise invalid(f"'{api}' '{version}' is no API's name and version")
    path = source(api, version)
    if not path.exists():
        raise ApiError(404, f"Discovery document not found for API service: {api}, {version}")
    return Response(200, path.read_bytes(), {"Content-Type": "application/json; charset=UTF-8"})


@API.method("apis.getRest")
def get_rest(cloud: Cloud, call: Call) -> Response:
    """Answer an API's document from the old central address."""
    return _document(call.params["api"], call.params["version"])


@API.raw("GET", r"/\$discovery/rest", like="apis.getRest", hosts=_HOSTS)
def get_own(cloud: Cloud, call: Call) -> Response:
    """Answer an API's document from its own host."""
    return _document(call.request.host.partition(".")[0], call.arg("version"))
