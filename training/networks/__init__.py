"""What the models of training/models compute."""
