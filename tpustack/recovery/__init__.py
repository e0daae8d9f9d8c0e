"""Repairs a stack whose update was killed: its locks, its state, and what the cloud has of it."""
