"""What machines write: a stack's own logs, followed live, and the errors in them explained."""
