"""Seeing a training from inside: where its time goes, what it looks at, how its weights move."""
