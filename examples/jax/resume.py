"""A loop of one's own in JAX that resumes: `tpu_core` gives it a lease and a ledger."""

import io
import os

import jax
import jax.numpy as jnp
import numpy as np

import tpu_core

STEPS, SAVE_EVERY, FILE = 200, 50, "checkpoint.npz"


@jax.jit
def train(weights: jax.Array, inputs: jax.Array, targets: jax.Array) -> jax.Array:
    """Return the weights after a step of linear regression."""
    loss = jax.grad(lambda now: jnp.mean((inputs @ now - targets) ** 2))
    return weights - 0.1 * loss(weights)


def main() -> None:
    """Train to the last step, from the newest checkpoint if there is one."""
    step, weights = 0, jnp.zeros(8)
    with tpu_core.run(os.environ.get("MODEL_DIR", "model")) as run:
        if saved := run.read(FILE):
            found = np.load(io.BytesIO(saved))
            step, weights = int(found["step"]), jnp.asarray(found["weights"])
        print(f"step {step}; the start before came to step {run.done}", flush=True)
        run.step(step)
        while step < STEPS:
            inputs = np.random.default_rng(step).normal(size=(32, 8))
            weights = train(weights, inputs, inputs.sum(axis=1))
            step += 1
            if run.step(step) or step % SAVE_EVERY == 0:
                np.savez(file := io.BytesIO(), step=step, weights=weights)
                run.save(FILE, file.getvalue())
    print(f"error: {jnp.abs(weights - 1).max():.6f}")


if __name__ == "__main__":
    main()
