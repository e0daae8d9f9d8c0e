"""Train TensorFlow models on Cloud TPUs through their gRPC endpoint, or on GPUs and CPUs.

Importing the package does not load TensorFlow. The README maps its folders.
"""

__version__ = "0.1.0"
