"""Google's TPU compiler in a child process: options, child, dumps, and what they say."""

from tpu_training.compile.libtpu.compiler import compile_program
from tpu_training.compile.libtpu.files import read_program

__all__ = ["compile_program", "read_program"]
