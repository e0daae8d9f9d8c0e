"""What `tpustack prove` makes on the real Google Cloud, and what it asks there."""
