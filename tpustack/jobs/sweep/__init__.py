"""`tpustack job sweep`: the same job with other parameters, each trial a job of the queue.

space.py says what may vary; record.py is what lies in the bucket; tuner.py asks Optuna for the next
parameters and which trials are poor; objective.py reads what trials have written; driver.py brings
these together, a step at a time.
"""
