"""`tpustack job`: programs in the queue of a stack's bucket."""
