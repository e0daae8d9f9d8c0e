"""The Compute Engine API."""
