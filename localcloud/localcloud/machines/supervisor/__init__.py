"""A machine's first process: runs and ends all others. Standard library only, to start fast."""
