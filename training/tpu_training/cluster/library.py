"""Set what TensorFlow needs in its environment, before its import, to find the TPU or leave it.

TensorFlow loads libtpu while it is imported. What is said here was seen with tensorflow-tpu 2.19.1
on a machine without a TPU: without the plug-in `initialize_tpu_system` ends with "RET_CHECK failure
… *platform", with it libtpu looks for chips; the plug-in together with TPU_LOAD_LIBRARY=0 aborts
the process.
"""

import importlib.metadata
import importlib.util
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from tpu_training.errors import InputError

# Google's example for tensorflow-tpu 2.19.1 sets these two:
# https://github.com/keras-team/keras-io/blob/master/examples/keras_rs/distributed_embedding_tf.py
_PLUG_IN = "NEXT_PLUGGABLE_DEVICE_USE_C_API"
_PLUG_IN_LIBRARY = "TF_PLUGGABLE_DEVICE_LIBRARY_PATH"
# TensorFlow's own search: tensorflow/core/tpu/tpu_api_dlsym_initializer.cc.
_LIBRARY = "TPU_LIBRARY_PATH"
_LOAD = "TPU_LOAD_LIBRARY"


def installed_library() -> str | None:
    """Return the libtpu that pip installed with tensorflow-tpu.

    None with any other TensorFlow: that of a TPU VM's image comes with what Google's runtime sets.
    """
    try:
        importlib.metadata.version("tensorflow-tpu")
    except importlib.metadata.PackageNotFoundError:
        return None
    spec = importlib.util.find_spec("libtpu")
    folders = spec.submodule_search_locations if spec else None
    return str(Path(folders[0]) / "libtpu.so") if folders else None


def use_tpu_here(environ: MutableMapping[str, str], library: str | None) -> None:
    """Name the plug-in, unless the user has; `library` is the installed libtpu."""
    if library is None or environ.get(_LOAD) == "0":
        return
    library = environ.get(_PLUG_IN_LIBRARY) or environ.get(_LIBRARY) or library
    environ.setdefault(_PLUG_IN, "true")
    environ.setdefault(_PLUG_IN_LIBRARY, library)
    environ.setdefault(_LIBRARY, library)


def leave_tpu_alone(environ: MutableMapping[str, str]) -> None:
    """Keep TensorFlow from loading libtpu, whose chips belong to the first process that does."""
    environ.setdefault(_LOAD, "0")
    if environ[_LOAD] == "0":
        for name in (_PLUG_IN, _PLUG_IN_LIBRARY):
            environ.pop(name, None)


def check_library(environ: Mapping[str, str]) -> None:
    """Raise InputError for settings with which TensorFlow would not get to this machine's TPU."""
    if environ.get(_LOAD) == "0":
        raise InputError(
            f"{_LOAD}=0 keeps TensorFlow from this machine's TPU, which the job is to train on: "
            f"unset {_LOAD}, or name another TPU with --tpu"
        )
    library = environ.get(_PLUG_IN_LIBRARY)
    if library and not Path(library).exists():
        raise InputError(
            f"{_PLUG_IN_LIBRARY}={library!r} does not exist: unset it if tensorflow-tpu is "
            "installed by pip, which brings libtpu along, else give the path of libtpu.so"
        )
