"""Readers for `data convert`, one file per format."""
