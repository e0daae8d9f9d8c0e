"""The policy pack: rules for every stack, which the engine checks at each preview."""
