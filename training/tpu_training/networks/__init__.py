"""What the models of tpu_training/models compute."""
