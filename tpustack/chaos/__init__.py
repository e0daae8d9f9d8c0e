"""`make chaos`: a real training on the local Google Cloud while things go wrong."""
