"""TensorFlow training on Cloud TPUs through the gRPC endpoint that they export.

Importing the package loads no TensorFlow; the modules that need it say so.
"""

__version__ = "0.1.0"
