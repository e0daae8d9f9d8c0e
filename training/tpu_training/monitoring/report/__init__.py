"""The report of a training: one HTML file that needs nothing else, and the same as JSON."""
