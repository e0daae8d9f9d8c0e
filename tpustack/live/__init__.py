"""What Google says of a stack before anything is made: one finding for each question."""
