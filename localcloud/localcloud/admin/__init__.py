"""What people and tools may do to the cloud itself: look into it, break it on purpose."""
