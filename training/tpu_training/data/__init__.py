"""Data sets on disk and in buckets: their manifest, and converters into it."""
