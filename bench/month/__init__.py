"""Thirty days of a job on a spot TPU, in virtual time, with the agent's real code."""
