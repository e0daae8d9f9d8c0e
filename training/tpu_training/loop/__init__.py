"""The training loop: state, compiled steps, evaluation, optimizers, and the callbacks between."""
