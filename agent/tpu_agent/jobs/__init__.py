"""Jobs: any program in the queue of a stack's bucket, run one after the other on its TPU.

`tpustack job` writes jobs into the bucket; on the machine that drives the TPU, the unit `jobs`
takes them from there (main.py). Both sides know a job by layout.py (where things lie) and record.py
(what a job is, and how it changes), and change it through store.py only, on conditions.

What runs where: the runner (runner.py) holds the lease of its TPU, chooses, starts, watches and
ends; each try of a job has a supervisor of its own (supervisor.py), a process that outlives a
runner which is killed. They talk through the try's folder alone (attempt.py).
"""

from __future__ import annotations
