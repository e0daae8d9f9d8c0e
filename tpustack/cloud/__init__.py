"""Google Cloud, and the local one."""
