"""Measurements, side by side in one run; what they promise are ratios."""
