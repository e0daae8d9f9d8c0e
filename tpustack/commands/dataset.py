"""`tpustack dataset`: fetches a data set and prints its folder."""

from __future__ import annotations

import click

from tpustack.demo import dataset, fashion_mnist, wordnet


@click.command("dataset")
@click.argument("name", type=click.Choice(["mnist", "fashion-mnist", "wordnet-nouns"]))
def command(name: str) -> None:
    """Fetch a data set once and print the source for `tpu-training data convert`.

    tpu-training data convert --name fashion-mnist --output data
    --source "$(tpustack dataset fashion-mnist)"
    """
    if name == "mnist":
        click.echo(dataset.obtain(lambda text: click.echo(text, err=True)).argument)
    else:
        obtain = {"fashion-mnist": fashion_mnist.obtain, "wordnet-nouns": wordnet.obtain}[name]
        click.echo(obtain())
