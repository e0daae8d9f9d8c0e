"""Google Cloud on localhost: the APIs that Cloud TPU users call, with VMs and TPUs that run."""

__version__ = "0.1.0"
