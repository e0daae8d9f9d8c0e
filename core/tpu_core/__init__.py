"""What the rooms of tpu-stack share: the centre of the house, with the standard library alone."""

__version__ = "0.1.0"
