"""Turn stored examples into features and labels on the host: parse, decode, augment."""
