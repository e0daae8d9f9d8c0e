"""The trainer's real training and evaluation steps as programs for Google's TPU compiler."""
