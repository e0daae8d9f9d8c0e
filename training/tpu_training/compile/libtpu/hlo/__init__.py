"""Read optimized HLO as text, the form in which the TPU compiler dumps it."""
