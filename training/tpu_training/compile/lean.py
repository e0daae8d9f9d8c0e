"""Import TensorFlow for steps alone: for a trace, or for a job. Loads none of it itself."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

# TensorFlow and Keras import these where they are installed and do without them elsewhere; no step
# needs them. With all of them the import takes 4.7 s and without 1.9. Who asks for them: Keras'
# sklearn_wrapper, visualization and data adapters, and TensorFlow's gce_cluster_resolver.
_OPTIONAL = ("googleapiclient", "matplotlib", "pandas", "scipy", "sklearn")


def import_tensorflow() -> None:
    """Import TensorFlow without the libraries that it merely looks for.

    What is loaded already stays as it is: a user's model may need the libraries.
    """
    if "tensorflow" in sys.modules:
        return
    with hidden(_OPTIONAL):
        import tensorflow  # noqa: F401


@contextmanager
def hidden(names: tuple[str, ...]) -> Iterator[None]:
    """Let imports of libraries called `names` fail meanwhile, as if they were not installed."""
    ours = [name for name in names if name not in sys.modules]
    # The import system takes None for a module that is known to be missing.
    sys.modules.update(dict.fromkeys(ours))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in ours:
            del sys.modules[name]
