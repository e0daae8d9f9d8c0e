"""The command line for people and pipelines."""

__version__ = "0.1.0"
