"""What a training does with gs://, by TensorFlow's own client. Run by test_trainings.py."""

from __future__ import annotations

import tensorflow as tf

gfile = tf.io.gfile


def files(root: str) -> None:
    path = f"{root}/dir/hello ü.txt"
    with gfile.GFile(path, "w") as file:
        file.write("hello")
    with gfile.GFile(path, "a") as file:
        file.write(" world")
    with gfile.GFile(path, "r") as file:
        assert file.read() == "hello world"
        file.seek(6)
        assert file.read(3) == "wor"
        file.seek(1)
        assert file.read(4) == "ello"
    assert gfile.exists(path)
    assert not gfile.exists(f"{root}/dir/none")
    assert gfile.stat(path).length == 11
    try:
        gfile.GFile(f"{root}/dir/none").read()
    except tf.errors.NotFoundError:
        pass
    else:
        raise AssertionError("a missing object was read")


def folders(root: str) -> None:
    gfile.makedirs(f"{root}/a/b")
    assert gfile.isdir(f"{root}/a/b")
    for index in range(3):
        with gfile.GFile(f"{root}/a/{index}.txt", "w") as file:
            file.write(str(index))
    assert not gfile.isdir(f"{root}/a/0.txt")
    assert sorted(gfile.listdir(f"{root}/a")) == ["0.txt", "1.txt", "2.txt", "b/"]
    assert [name[-5:] for name in sorted(gfile.glob(f"{root}/a/*.txt"))] == [
        "0.txt",
        "1.txt",
        "2.txt",
    ]
    gfile.rename(f"{root}/a/0.txt", f"{root}/a/9.txt")
    gfile.copy(f"{root}/a/9.txt", f"{root}/a/8.txt")
    assert gfile.GFile(f"{root}/a/8.txt").read() == "0"
    gfile.rename(f"{root}/a", f"{root}/z")
    assert sorted(gfile.listdir(f"{root}/z")) == ["1.txt", "2.txt", "8.txt", "9.txt", "b/"]
    gfile.rmtree(f"{root}/z")
    assert gfile.glob(f"{root}/z/*") == []


def records(root: str) -> None:
    path = f"{root}/data/train-00000-of-00001.tfrecord"
    expected = [bytes([index % 256]) * 3000 for index in range(4000)]
    with tf.io.TFRecordWriter(path) as writer:
        for record in expected:
            writer.write(record)
    read = tf.data.TFRecordDataset(path, buffer_size=1 << 20)
    assert [bytes(record) for record in read.as_numpy_iterator()] == expected


def checkpoints(root: str) -> None:
    weights = tf.Variable(tf.zeros(100_000))
    checkpoint = tf.train.Checkpoint(weights=weights)
    manager = tf.train.CheckpointManager(checkpoint, f"{root}/checkpoints", max_to_keep=2)
    for _ in range(3):
        weights.assign_add(tf.ones(100_000))
        manager.save()
    names = sorted(gfile.listdir(f"{root}/checkpoints"))
    assert names == [
        "checkpoint",
        "ckpt-2.data-00000-of-00001",
        "ckpt-2.index",
        "ckpt-3.data-00000-of-00001",
        "ckpt-3.index",
    ], names
    weights.assign(tf.zeros(100_000))
    latest = tf.train.latest_checkpoint(f"{root}/checkpoints")
    assert latest == f"{root}/checkpoints/ckpt-3"
    checkpoint.restore(latest).assert_consumed()
    assert float(tf.reduce_min(weights)) == 3.0


def events(root: str) -> None:
    writer = tf.summary.create_file_writer(f"{root}/tensorboard")
    with writer.as_default():
        for step in range(10):
            tf.summary.scalar("loss", 1 / (step + 1), step=step)
            writer.flush()
    writer.close()
    (name,) = gfile.listdir(f"{root}/tensorboard")
    read = tf.data.TFRecordDataset(f"{root}/tensorboard/{name}")
    assert len(list(read)) == 11


def run(root: str) -> int:
    for part in (files, folders, records, checkpoints, events):
        part(root)
        print(part.__name__, flush=True)
    return 0
