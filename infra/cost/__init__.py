"""The cost of a stack, from the catalog's prices alone: no engine, no cloud, no floats."""
