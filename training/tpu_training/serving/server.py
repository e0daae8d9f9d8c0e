"""TensorFlow Serving's REST API for one model, without HTTP.

Paths, bodies and errors follow https://www.tensorflow.org/tfx/serving/api_rest: predict in row
(`instances`) and column (`inputs`) format, model status, metadata. It omits classify and regress,
which take tf.Example, and `b64` values, because no input here is a string.
"""

import json
import logging
import re
import socket
from collections.abc import Mapping
from contextlib import nullcontext
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from threading import BoundedSemaphore, Timer
from typing import Any, NamedTuple

import numpy as np

from tpu_training.serving.export import SIGNATURE
from tpu_training.serving.prediction import Predictor, TensorInfo

_PATH = re.compile(
    r"/v1/models/(?P<model>[^/:]+)(?:/versions/(?P<version>\d+)|/labels/(?P<label>[^/:]+))?"
    r"(?P<rest>/metadata|:\w+)?"
)
# Types whose name in TensorFlow's protocol buffers is not their own in capitals.
_DATA_TYPES = {"float16": "HALF", "float32": "FLOAT", "float64": "DOUBLE"}


class Answer(NamedTuple):
    """Status and JSON body of a response."""

    status: HTTPStatus
    body: Mapping[str, Any]


class Refused(Exception):
    """A request to answer with an error: the status, and the body's `error`."""

    @property
    def answer(self) -> Answer:
        """The response."""
        status, message = self.args
        return Answer(status, {"error": message})


class RestApi:
    """Answers requests for the model `name`."""

    def __init__(self, name: str, predictor: Predictor) -> None:
        """Serve `predictor`, its only version, under `name`."""
        self.name = name
        self._predictor = predictor

    def answer(self, method: str, path: str, body: bytes) -> Answer:
        """Answer one request."""
        try:
            match = _PATH.fullmatch(path.partition("?")[0])
            if match is None:
                raise Refused(HTTPStatus.NOT_FOUND, f"Malformed request: {method} {path}")
            self._check_version(match)
            if method == "GET" and match["rest"] is None:
                ok = {"error_code": "OK", "error_message": ""}
                state = {"version": self._predictor.version, "state": "AVAILABLE", "status": ok}
                return Answer(HTTPStatus.OK, {"model_version_status": [state]})
            if method == "GET" and match["rest"] == "/metadata":
                return Answer(HTTPStatus.OK, self._metadata())
            if method == "POST" and match["rest"] == ":predict":
                return Answer(HTTPStatus.OK, self._predict(_parse(body)))
            raise Refused(HTTPStatus.NOT_FOUND, f"Malformed request: {method} {path}")
        except Refused as refused:
            return refused.answer

    def _check_version(self, match: re.Match[str]) -> None:
        version = match["version"] or self._predictor.version
        if match["model"] != self.name or match["label"] or version != self._predictor.version:
            wanted = match["version"] or match["label"] or "Latest"
            message = f"Servable not found for request: {wanted}({match['model']})"
            raise Refused(HTTPStatus.NOT_FOUND, message)

    def _metadata(self) -> dict[str, Any]:
        predictor = self._predictor
        signature = {
            "inputs": {predictor.input.name: _tensor(predictor.input)},
            "outputs": {info.name: _tensor(info) for info in predictor.outputs},
            "method_name": "tensorflow/serving/predict",
            "defaults": {},
        }
        model = {"name": self.name, "signature_name": "", "version": predictor.version}
        signatures = {"signature_def": {"signature_def": {SIGNATURE: signature}}}
        return {"model_spec": model, "metadata": signatures}

    def _predict(self, request: Mapping[str, Any]) -> dict[str, Any]:
        name = request.get("signature_name", SIGNATURE)
        if name != SIGNATURE:
            raise _wrong(f'Serving signature name: "{name}" not found in signature def')
        if ("instances" in request) == ("inputs" in request):
            raise _wrong("expected either 'instances' (a list, row format) or 'inputs' (columns)")
        if "inputs" in request:
            values = request["inputs"]
            outputs = self._run(self._named(values) if isinstance(values, dict) else values)
            return {"outputs": outputs if len(outputs) > 1 else next(iter(outputs.values()))}
        rows = request["instances"]
        if not isinstance(rows, list) or not rows:
            raise _wrong("'instances' must be a list with at least one example")
        if any(isinstance(row, dict) for row in rows):
            rows = [self._named(row) for row in rows]
        outputs = self._run(rows)
        # A value per example, or an object of values where there are several outputs.
        if len(outputs) == 1:
            return {"predictions": next(iter(outputs.values()))}
        each = zip(*outputs.values(), strict=True)
        return {"predictions": [dict(zip(outputs, row, strict=True)) for row in each]}

    def _named(self, values: object) -> object:
        name = self._predictor.input.name
        if not isinstance(values, dict) or set(values) != {name}:
            raise _wrong(f"the model has one input, {name!r}")
        return values[name]

    def _run(self, values: object) -> Mapping[str, list[Any]]:
        kind = np.dtype(self._predictor.input.dtype)
        try:
            features = np.array(values)
            is_number = features.dtype.kind in "iuf"
            if not is_number or not np.array_equal(features, features.astype(kind)):
                sizes = self._predictor.input.shape
                shape = "x".join("n" if size is None else str(size) for size in sizes)
                raise ValueError(f"expected numbers of type {kind.name}, of the shape {shape}")
            outputs = self._predictor.predict(features.astype(kind))
            return {name: output.tolist() for name, output in outputs.items()}
        except (ValueError, OverflowError) as error:
            raise _wrong(f"{self._predictor.input.name}: {error}") from error


def _parse(body: bytes) -> dict[str, Any]:
    try:
        request = json.loads(body)
    except ValueError as error:
        raise _wrong(f"JSON Parse error: {error}") from error
    if not isinstance(request, dict):
        raise _wrong("JSON Value: not an object")
    return request


def _wrong(message: str) -> Refused:
    return Refused(HTTPStatus.BAD_REQUEST, message)


def _tensor(info: TensorInfo) -> dict[str, Any]:
    sizes = [{"size": str(-1 if size is None else size), "name": ""} for size in info.shape]
    return {
        "dtype": f"DT_{_DATA_TYPES.get(info.dtype, info.dtype.upper())}",
        "tensor_shape": {"dim": sizes, "unknown_rank": False},
        "name": info.name,
    }


# About the JSON text of a batch of 256 images of 224 x 224 x 3.
_LARGEST_BODY_BYTES = 256 << 20
_SMALL_BODY_BYTES = 1 << 20
# So many are open, and so many large bodies in memory; others are closed, or wait.
_CONNECTIONS, _BODIES = 64, 4
# A client may be silent for so long, and take so long to send a request.
_SILENT_SECONDS, _REQUEST_SECONDS = 30.0, 120.0
_JSON = "application/json"
_LENGTH = re.compile(r"[0-9]{1,9}")
# A Host header: an IPv6 address, or another address or name; and perhaps a port.
_HOST = re.compile(r"(?:\[([^]]*)\]|([^:]*))(?::[0-9]*)?")

logger = logging.getLogger(__name__)


def create_server(api: RestApi, host: str, port: int) -> ThreadingHTTPServer:
    """Listen on `host`:`port` (0: any free one); call `serve_forever` on the result."""

    class Handler(_Handler):
        rest_api = api
        bodies = BoundedSemaphore(_BODIES)

    return _Server((host, port), Handler)


class _Server(ThreadingHTTPServer):
    """Closes connections over the limit at once."""

    daemon_threads = True

    def __init__(self, *arguments: Any) -> None:
        self._free = BoundedSemaphore(_CONNECTIONS)
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    # Otherwise a small answer waits 40 ms for the client to acknowledge its headers.
    disable_nagle_algorithm = True
    timeout = _SILENT_SECONDS
    connection: socket.socket
    rest_api: RestApi
    bodies: BoundedSemaphore

    def handle_one_request(self) -> None:
        """Read headers and body for a limited time, however slowly they come."""
        # The socket's timeout is for each read only: a byte now and then would hold it for ever.
        timer = Timer(_REQUEST_SECONDS, self.connection.shutdown, [socket.SHUT_RD])
        timer.daemon = True
        timer.start()
        super().handle_one_request()
        timer.cancel()

    def do_GET(self) -> None:
        """Model status and metadata."""
        if not self._refused():
            self._send(self.rest_api.answer("GET", self.path, b""))

    def do_POST(self) -> None:
        """Predict."""
        if self._refused():
            return
        given = self.headers.get("Content-Length", "")
        length = int(given) if _LENGTH.fullmatch(given) else _LARGEST_BODY_BYTES + 1
        if length > _LARGEST_BODY_BYTES:
            message = f"expected a Content-Length of at most {_LARGEST_BODY_BYTES} bytes"
            self._refuse(HTTPStatus.BAD_REQUEST, message)
        elif self.headers.get_content_type() != _JSON:
            self._refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"expected Content-Type: {_JSON}")
        else:
            # A large body takes several times its size once it is parsed, so few are at once.
            with self.bodies if length > _SMALL_BODY_BYTES else nullcontext():
                self._send(self.rest_api.answer("POST", self.path, self.rfile.read(length)))

    def _refused(self) -> bool:
        """Refuse what a web page sends: also one whose name was made to mean this machine."""
        here = str(self.connection.getsockname()[0])
        parts = _HOST.fullmatch(self.headers.get("Host", ""))
        host = (parts[1] or parts[2]) if parts else ""
        if self.headers.get("Origin"):
            self._refuse(HTTPStatus.FORBIDDEN, "web pages of other servers can't ask this one")
        elif not _leads_nowhere_else(host) and ip_address(here).is_loopback:
            message = f"Host: {host} is not this server; ask {here}"
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST, message)
        else:
            return False
        return True

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        # The next request can't be told from an unread body.
        self.close_connection = True
        self._send(Answer(status, {"error": message}))

    def _send(self, answer: Answer) -> None:
        body = json.dumps(answer.body).encode()
        self.send_response(answer.status)
        self.send_header("Content-Type", _JSON)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log a line per request."""
        logger.debug("serve: %s %s", self.address_string(), format % args)


def _leads_nowhere_else(host: str) -> bool:
    """Return whether `host` is an address, or a name that has no domain to be bought."""
    try:
        ip_address(host)
    except ValueError:
        return bool(host) and "." not in host
    return True
