"""Stack files: read, checked and written, and the training wheel that a stack uploads."""
