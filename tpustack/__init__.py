"""The command line for people and pipelines."""
