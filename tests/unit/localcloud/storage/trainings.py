"""Runs commands of the training package, one after the other in one process.

Each comes as a line on standard input, its arguments in JSON; `tensorflow` runs
tensorflow_client.py. Used by test_trainings.py.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import sys

from tests.unit.localcloud.storage import tensorflow_client
from tpu_training.__main__ import main

if __name__ == "__main__":
    for line in sys.stdin:
        logging.root.handlers.clear()  # Each command writes to the standard output of its time.
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            arguments = json.loads(line)
            if arguments[0] == "tensorflow":
                code = tensorflow_client.run(arguments[1])
            else:
                code = main(arguments)
        print(json.dumps([code, out.getvalue(), err.getvalue()]), flush=True)
