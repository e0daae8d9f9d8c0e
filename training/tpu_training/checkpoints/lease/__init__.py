"""The lease of a model directory: two trainers never write one directory at the same time."""
