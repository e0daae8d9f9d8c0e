"""Compute instances: their records, and the machines that really run for them."""
