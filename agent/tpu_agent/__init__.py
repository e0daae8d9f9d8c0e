"""The agent on the machine that trains: keeps limits and makes a lost TPU anew.

It needs Python 3.10 and nothing else. The start-up script runs it as the systemd unit `tpu-stack-agent`;
the metadata `agent` is the whole package in one file (bundle.py). It acts as the machine's own
account, by the metadata `limits`: a JSON object with `tpus` (names), `timeToLiveHours`,
`idleMinutes` (either may be missing), `turnOff` (whether the machine goes off with a TPU whose time
is up) and `recovery` (budgets; missing unless lost TPUs are made anew). A change counts at once.
"""

from __future__ import annotations
