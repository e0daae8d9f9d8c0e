"""Start a training with weights from elsewhere: read them, map their names, assign them."""
