"""The agent on the machine that trains: it enforces limits and recreates lost TPUs.

It needs Python 3.10, `tpu_core` and nothing else. The start-up script runs it as the systemd unit
`tpu-stack-agent`; the metadata `agent` is both packages in one file (bundle.py). It acts as the
machine's own account, by the metadata `limits` (tpu_core.contract.Limits); a change counts at once.
"""
