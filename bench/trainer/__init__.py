"""Programs that the rows about training run, each in a process of its own."""
