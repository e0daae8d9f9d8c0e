"""Where a job's wall time goes, over all of its starts. Loads no TensorFlow."""
