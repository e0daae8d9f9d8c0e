"""The policy pack: what every stack has to keep to, checked by the engine at each preview."""
