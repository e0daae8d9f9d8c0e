"""What `data convert` reads: one file a form."""
