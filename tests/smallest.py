"""The smallest TensorFlow script that does one training step of the trainer's model.

Usage: python -m tests.smallest
"""

import tensorflow as tf


def main() -> None:
    """Plain variables and ops, plain gradient descent, one batch of noise."""
    shapes = [(3, 3, 1, 16), (16,), (3, 3, 16, 32), (32,), (1568, 128), (128,), (128, 10), (10,)]
    weights = [tf.Variable(tf.random.normal(shape, stddev=0.05)) for shape in shapes]
    images = tf.random.normal((256, 28, 28, 1))
    labels = tf.random.uniform((256,), maxval=10, dtype=tf.int32)

    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            x = images
            for kernel, bias in (weights[0:2], weights[2:4]):
                x = tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, "SAME"), bias)
                x = tf.nn.relu(tf.nn.max_pool2d(x, 2, 2, "SAME"))
            x = tf.nn.relu(tf.reshape(x, (-1, 1568)) @ weights[4] + weights[5])
            logits = x @ weights[6] + weights[7]
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_mean(losses)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.01 * gradient)
        return loss

    print(f"first step: loss {float(tf.function(step)()):.3f}", flush=True)


if __name__ == "__main__":
    main()
