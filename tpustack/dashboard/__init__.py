"""A page on localhost: stacks, TPUs, jobs and goodput, read from buckets and APIs."""
