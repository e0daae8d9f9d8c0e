"""What a stack costs, from the catalog's prices alone: no engine, no cloud, no floats."""
