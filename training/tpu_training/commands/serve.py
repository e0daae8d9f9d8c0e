"""`tpu-training serve`."""

import argparse
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tpu_training.commands.arguments import add_debug
from tpu_training.commands.command import refuse_rest
from tpu_training.errors import InputError

# TensorFlow Serving's own port for REST.
_PORT = 8501


@dataclass(frozen=True)
class Serve:
    """Answer TensorFlow Serving's REST requests from a SavedModel."""

    saved_model: str
    name: str
    host: str | None
    port: int

    def run(self) -> int:
        """Serve until SIGTERM or Ctrl-C."""
        from tpu_training.serving.predictor import Predictor
        from tpu_training.serving.rest import RestApi
        from tpu_training.serving.server import LOOPBACK, create_server

        predictor = Predictor(self.saved_model)
        host = self.host or LOOPBACK
        try:
            server = create_server(RestApi(self.name, predictor), host, self.port)
        except OSError as error:
            raise InputError(f"--host={host} --port={self.port}: {error.strerror}") from error
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with server:
            print(
                f"serving {self.name} version {predictor.version} at "
                f"http://{host}:{server.server_port}/v1/models/{self.name}",
                flush=True,
            )
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                print("serving ended", flush=True)
        return 0


def add(modes: Any) -> None:
    """Add the parser."""
    parser = modes.add_parser(
        "serve",
        help="answer TensorFlow Serving's REST requests from a SavedModel",
        description="Serve an exported SavedModel over TensorFlow Serving's REST API: POST "
        "/v1/models/NAME:predict, GET /v1/models/NAME and /v1/models/NAME/metadata.",
        allow_abbrev=False,
    )
    parser.add_argument("--saved-model", required=True, help="what `tpu-training export` wrote")
    parser.add_argument("--name", default="model", help="the model's name in the URL (model)")
    parser.add_argument("--host", help="address to listen on (this machine only)")
    parser.add_argument("--port", type=int, default=_PORT, help=f"0 takes a free one ({_PORT})")
    add_debug(parser)
    parser.set_defaults(build=_build)


def _build(known: argparse.Namespace, rest: Sequence[str]) -> Serve:
    refuse_rest(rest, "serve")
    if not 0 <= known.port < 65536:
        raise InputError(f"--port={known.port}: expected 0 to 65535")
    return Serve(known.saved_model, known.name, known.host, known.port)
