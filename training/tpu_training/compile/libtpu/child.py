"""The process in which libtpu works: `python -m tpu_training.compile.libtpu.child FOLDER`.

It reads `request.json` and `program` from FOLDER and writes `topology.json`, libtpu's dump and
`answer.json` into it. A crash of the compiler so ends nothing else. Its standard input is a pipe
from the process that started it: when that ends, however it does, this one removes FOLDER and ends.
"""

import json
import os
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

from tpu_training.compile.libtpu.limits import hbm_limit
from tpu_training.compile.libtpu.options import compile_options
from tpu_training.compile.libtpu.pjrt import Compiler, PjrtError

_TRIES = 10


def main(folder: Path) -> None:
    """Do what `request.json` asks."""
    threading.Thread(target=_end_with_parent, args=(folder,), daemon=True).start()
    request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    _write(folder / "answer.json", _compile(folder, request))


def _compile(folder: Path, request: dict[str, Any]) -> dict[str, Any]:
    try:
        compiler = Compiler(Path(request["library"]), request["topology"], request["options"])
    except PjrtError as error:
        return {"topology_error": str(error)}
    devices = len(compiler.device_attributes())
    _write(folder / "topology.json", {"limit_bytes": hbm_limit(compiler)})
    replicas, partitions = request["replicas"], request["partitions"]
    if replicas * partitions > devices:
        return {"too_few_devices": devices}
    options = compile_options(replicas, partitions, request["shardy"], folder / "dump")
    code = (folder / "program").read_bytes()
    try:
        executable = compiler.compile(code, request["format"], options)
    except PjrtError as error:
        return {"error": str(error)}
    needed = compiler.memory_needed(executable)
    return {"costs": compiler.cost_analysis(executable), "needed_bytes": needed}


def _write(file: Path, content: dict[str, Any]) -> None:
    """Write at once: the other process reads the file as soon as it exists."""
    part = file.with_suffix(".part")
    part.write_text(json.dumps(content), encoding="utf-8")
    part.rename(file)


def _end_with_parent(folder: Path) -> None:
    """Wait for the end of standard input, which is the end of the parent; then clean up."""
    while os.read(0, 1024):
        pass
    for _ in range(_TRIES):
        # The compiler may write another file meanwhile.
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            break
    os._exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    # libtpu's own threads need not end in order.
    sys.stdout.flush()
    os._exit(0)
