"""Train TensorFlow models on Cloud TPUs through their gRPC endpoint, or on GPUs and CPUs.

    from tpu_training import fit

Importing the package does not load TensorFlow. docs/models.md describes its names, the README maps
its folders.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

# Where each name comes from when it is first used; __init__.pyi has their types.
_HOMES = {
    "fit": "api",
    "export": "api",
    "load": "api",
    "evaluate": "api",
    "predict": "api",
    "write_data": "api",
    "local_copy": "data.files",
    "Result": "job.job",
    "Task": "models.spec",
    "Metric": "models.spec",
    "mean": "models.spec",
    "Params": "models.params",
    "DataSpec": "models.spec",
    "Callback": "loop.callbacks",
    "LoopReport": "loop.callbacks",
    "TrainingError": "errors",
    "InputError": "errors",
    "Interrupted": "errors",
}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    """Import what has `name`."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
