"""The local cloud's command line."""
