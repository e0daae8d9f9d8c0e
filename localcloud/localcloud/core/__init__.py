"""What every emulated API shares: routing, validation, identity, state, operations, faults."""
