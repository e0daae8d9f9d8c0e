"""What all emulated APIs share: routing, validation, identity, state, operations and faults."""
