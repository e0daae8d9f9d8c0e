"""Copy a checkpoint's variables, so that training continues while the copy is written."""

import tensorflow as tf

from tpu_training.cluster.cluster import Cluster


class Snapshot:
    """A second set of a checkpoint's variables in this process, in the same object tree.

    A checkpoint written from the copy is an ordinary one: tf.train.Checkpoint restores it into the
    originals.
    """

    def __init__(self, checkpoint: tf.train.Checkpoint, cluster: Cluster) -> None:
        """Allocate a copy of everything in `checkpoint`."""
        self._cluster = cluster
        self._originals: list[tf.Variable] = []
        self._copies: list[tf.Variable] = []
        self._values: list[tf.Tensor] = []
        with tf.device(cluster.this_process):
            self.checkpoint = _copy_tree(checkpoint, self._originals, self._copies)
        # Asked now: a value on a worker that died never says where it is, and lets no thread run.
        self._hosts = [host_of(original.device) for original in self._originals]
        self._read = tf.function(self._read_all)

    def take(self) -> bool:
        """Capture the current values; return whether all of them are finite.

        On a CPU nothing is copied yet: TensorFlow copies on write while a value is in use. An
        accelerator's memory has no room for a second set, so its values go to the memory of its
        host, from where the network takes its time.
        """
        with self._cluster.on_loop_device():
            finite, *self._values = self._read()
        return bool(finite)

    def fill(self) -> None:
        """Bring the captured values into the copy, one by one; may be called from any thread."""
        with tf.device(self._cluster.this_process):
            for copy in self._copies:
                copy.assign(tf.identity(self._values.pop(0)))

    def _read_all(self) -> list[tf.Tensor]:
        values = [original.read_value() for original in self._originals]
        finite = [tf.reduce_all(tf.math.is_finite(v)) for v in values if v.dtype.is_floating]
        for index, host in enumerate(self._hosts):
            if host:
                with tf.device(host):
                    values[index] = tf.identity(values[index])
        return [tf.reduce_all(tf.stack(finite)), *values]


def host_of(device: str) -> str:
    """Return the CPU of the machine that `device` is in; "" where it is one itself."""
    spec = tf.DeviceSpec.from_string(device)
    if spec.device_type == "CPU":
        return ""
    return str(spec.replace(device_type="CPU", device_index=0).to_string())


def _copy_tree(
    root: tf.train.Checkpoint, originals: list[tf.Variable], copies: list[tf.Variable]
) -> tf.train.Checkpoint:
    """Rebuild the tree of `root` with new variables; collect both sets in the same order."""
    view = tf.train.TrackableView(root)
    known: dict[int, object] = {}

    def copy(node: object) -> object:
        if id(node) in known:
            return known[id(node)]
        if isinstance(node, tf.train.experimental.PythonState):
            known[id(node)] = node
        elif isinstance(node, tf.Variable):
            known[id(node)] = tf.Variable(tf.zeros(node.shape, node.dtype), trainable=False)
            originals.append(node)
            copies.append(known[id(node)])
        else:
            known[id(node)] = inner = tf.train.Checkpoint() if node is root else tf.Module()
            for name, child in view.children(node).items():
                if name != "save_counter":  # The new root has its own.
                    setattr(inner, name, copy(child))
        return known[id(node)]

    return copy(root)
