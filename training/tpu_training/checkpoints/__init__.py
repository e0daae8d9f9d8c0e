"""Checkpoints: written in the background, read at the start, and what they say of their job."""
