"""A page on localhost: stacks, TPUs, jobs, goodput and curves, read from buckets and APIs."""
