"""Data sets: their form on disk, how they are written, checked, and read while training."""
