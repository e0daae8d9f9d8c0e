"""Pictures for TensorBoard, written without it."""

import struct

import tensorflow as tf

_METADATA = tf.compat.v1.SummaryMetadata(
    plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="images")
)
# PNG: eight bytes of signature, length and name of the first chunk, then width and height.
_SIZE_AT = slice(16, 24)


def write_picture(writer: tf.summary.SummaryWriter, step: int, name: str, png: bytes) -> None:
    """Write a PNG picture under `name`."""
    width, height = struct.unpack(">II", png[_SIZE_AT])
    # What TensorBoard's plug-in reads: width and height as text, then the pictures.
    value = tf.constant([str(width).encode(), str(height).encode(), png])
    with writer.as_default(step):
        tf.summary.write(name, value, metadata=_METADATA)
