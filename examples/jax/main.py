"""JAX with Flax and Optax: the batch is divided among all devices of all hosts."""

import os
import sys
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec

BATCH, STEPS = 80, 200


def examples(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return features of ten classes, a pattern each under noise, and their classes."""
    patterns = np.random.default_rng(0).normal(size=(10, 64))
    random = np.random.default_rng(seed)
    classes = random.integers(10, size=count)
    return (patterns[classes] + 2 * random.normal(size=(count, 64))).astype(np.float32), classes


class Network(nn.Module):
    """Two layers."""

    @nn.compact
    def __call__(self, features: jax.Array) -> jax.Array:
        """Return the logits."""
        return nn.Dense(10)(nn.relu(nn.Dense(64)(features)))


NETWORK, OPTIMIZER = Network(), optax.adam(1e-3)


@jax.jit
def step(weights: Any, state: Any, features: jax.Array, classes: jax.Array) -> tuple[Any, Any]:
    """Return weights and the optimizer's state after a step."""

    def loss(weights: Any) -> jax.Array:
        logits = NETWORK.apply(weights, features)
        return optax.softmax_cross_entropy_with_integer_labels(logits, classes).mean()

    updates, state = OPTIMIZER.update(jax.grad(loss)(weights), state)
    return optax.apply_updates(weights, updates), state


@jax.jit
def accuracy(weights: Any, features: jax.Array, classes: jax.Array) -> jax.Array:
    """Return the share of right answers."""
    return jnp.mean(jnp.argmax(NETWORK.apply(weights, features), axis=1) == classes)


def main() -> None:
    """Train, and print devices and accuracy. With --hosts, together with the slice's others."""
    if "--hosts" in sys.argv:
        # JAX finds these out on a TPU VM, but not on Compute Engine.
        count, number = (os.environ.get(f"JAX_{name}") for name in ("NUM_PROCESSES", "PROCESS_ID"))
        jax.distributed.initialize(
            num_processes=int(count) if count else None,
            process_id=int(number) if number else None,
        )
    print(f"devices: {jax.device_count()} x {jax.devices()[0].device_kind}", flush=True)
    print(f"process: {jax.process_index() + 1} of {jax.process_count()}", flush=True)
    mesh = jax.sharding.Mesh(jax.devices(), ("batch",))
    divided = NamedSharding(mesh, PartitionSpec("batch"))
    whole = NamedSharding(mesh, PartitionSpec())

    def divide(values: np.ndarray) -> jax.Array:
        # Each host has all examples here; each device takes its part of them.
        return jax.make_array_from_callback(values.shape, divided, lambda part: values[part])

    weights = jax.jit(NETWORK.init, out_shardings=whole)(jax.random.key(0), np.zeros((1, 64)))
    state = jax.jit(OPTIMIZER.init, out_shardings=whole)(weights)
    features, classes = examples(4000, 1)
    for number in range(STEPS):
        part = np.arange(number * BATCH, (number + 1) * BATCH) % len(classes)
        weights, state = step(weights, state, divide(features[part]), divide(classes[part]))
    print(f"accuracy: {accuracy(weights, *map(divide, examples(800, 2))):.3f}")


if __name__ == "__main__":
    main()
