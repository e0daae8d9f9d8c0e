"""One job from its parameters to `metrics.json`."""
