"""The command line: cli.py, the arguments of a job, and one file for each other command.

A command's file has `add(modes)`, which adds its parser, and a class whose `run` prints the results
and returns the exit code. No command loads TensorFlow before it runs.
"""
