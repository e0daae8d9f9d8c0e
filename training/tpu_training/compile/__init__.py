"""Compile programs for TPUs with Google's own compiler, on a machine without one.

Other programs read what was found by `cached`, which neither compiles nor loads TensorFlow.
"""

from tpu_training.compile.answer import Answer
from tpu_training.compile.session import cached, cached_job, read_manifest
from tpu_training.compile.table import largest_batch, misfit
from tpu_training.data.manifest import Manifest

__all__ = ["Answer", "Manifest", "cached", "cached_job", "largest_batch", "misfit", "read_manifest"]
