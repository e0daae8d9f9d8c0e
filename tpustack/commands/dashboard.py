"""`tpustack dashboard`: one page on this machine with all that goes on."""

from __future__ import annotations

from pathlib import Path

import click

from tpustack import console
from tpustack.errors import UsageError

_PORT = click.IntRange(0, 65535)


@click.command("dashboard")
@click.option(
    *("--stack", "-s", "stacks"),
    multiple=True,
    shell_complete=console.stacks,
    help="Show this stack; may be given several times. Without it and --bucket: all stacks.",
)
@click.option(
    *("--bucket", "buckets"),
    metavar="gs://BUCKET",
    multiple=True,
    help="Show what is in this bucket, which is enough to read; may be given several times.",
)
@click.option("--port", type=_PORT, help="Serve on this port, not on any that is free.")
@click.option(
    "--export",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Serve nothing: write the page as it is now, for reading alone, to this folder.",
)
def command(
    stacks: tuple[str, ...], buckets: tuple[str, ...], port: int | None, export: Path | None
) -> None:
    """Show stacks, TPUs, jobs, goodput, cost and learning curves on one page, live.

    The page is served on this machine alone, at an address that only who sees this output knows.
    It ends with Ctrl-C, and keeps nothing.
    """
    if export is not None and port is not None:
        raise UsageError("--export serves nothing, so it excludes --port")
    from tpustack.dashboard.places import places

    found = places(stacks, buckets)
    if export is not None:
        from tpustack.dashboard.export import write

        click.echo(
            f"{write(found, export)} written. A browser shows it only from a web server: "
            f"python3 -m http.server --bind 127.0.0.1 --directory {export}"
        )
        return
    from tpustack.dashboard.server import serve

    serve(found, port or 0, lambda url: click.echo(f"{url}\nCtrl-C ends it."))
