"""Jobs: any program in the queue of a stack's bucket, run one after the other on its TPU.

`tpustack job` writes jobs into the bucket; on the machine that drives the TPU, the unit `jobs`
takes them from there (main.py). Both sides know a job by `tpu_core.paths` (where things are) and
queue.py (what a job is, and how it changes), and change it on conditions only.

The runner (runner.py) holds the lease of its TPU, chooses, starts, watches and ends jobs. Each
attempt has a supervisor of its own (attempt.py), a process that outlives a killed runner. They talk
through the attempt's folder alone.
"""
