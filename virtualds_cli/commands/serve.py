"""``serve`` and ``view``: serve sets and files over HTTP, as plain Zarr and as a web page."""

from __future__ import annotations

import secrets
import webbrowser
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from threading import Thread
from typing import IO, TYPE_CHECKING, Any

import click

from virtualds_cli.command import command
from virtualds_cli.commands.build import TREE_OPTION, open_files
from virtualds_cli.options import (
    MFDATASET_OPTIONS,
    READ_OPTIONS,
    add_file_arguments,
    add_options,
    list_paths,
    select_options,
)
from virtualds_cli.output import print_report

if TYPE_CHECKING:
    from virtualds_server import ServedData

SERVE_OPTIONS = ("group", "drop_variables", "snapshot", "on_error", *READ_OPTIONS)
"""The options of `virtualds_server.create_app`."""


@command(
    "serve",
    examples=(
        ("Serve a set on this machine", "virtualds serve refs.zarr"),
        (
            "Serve it to other machines; the set may refer to one folder only",
            "virtualds serve refs.zarr --host 0.0.0.0 --allow /archive",
        ),
        ("Serve files without a set", "virtualds serve 'data/*.nc' --concat-dim time"),
        ("Check whether it can be served, and exit", "virtualds serve refs.zarr --check"),
    ),
)
@add_file_arguments
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="Port to listen on; 0 takes a free one.",
)
@click.option("--threads", type=click.IntRange(1), help="Chunks to read at once. [default: 8]")
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    help="Seconds after which a request fails if its data are not read yet. [default: 60.0]",
)
@click.option("--check", is_flag=True, help="Open what would be served, report it, and exit.")
@TREE_OPTION
@add_options("snapshot", *MFDATASET_OPTIONS)
def serve(
    urls: Sequence[str],
    files_from: IO[str] | None,
    host: str,
    port: int,
    threads: int | None,
    timeout: float | None,
    check: bool,
    tree: str | None,
    **options: Any,
) -> None:
    """Serve a set or files as plain Zarr over HTTP, read only.

    URLS are a set, a file, or files and patterns, which are combined as by scan. Any reader of Zarr
    opens /zarr/ (Zarr v3) or /zarr2/ (Zarr v2), without virtualds. Chunks are passed on as they are
    stored where readers know their encoding, otherwise they are decoded. A set is opened again when
    it changes. Only this machine can connect unless --host says otherwise; there are no logins and
    no TLS; put a proxy in front for these.
    """
    from virtualds_server.app import (
        bind_socket,
        create_app,
        get_socket_url,
        make_uvicorn_server,
        run,
    )
    from virtualds_server.bodies import Limits
    from virtualds_server.versions import NotRepresentableError

    served = make_served_data(urls, files_from, tree, options)
    limit_options = {"threads": threads, "timeout": timeout}
    limits = Limits(**select_options(limit_options, limit_options))
    app = create_app(served, limits=limits)
    # open it now, so that errors are printed here
    version = app.state.server.tracker.get()
    store = version.open_store(3)
    document = {"served": served.name, "arrays": store.count, "decoded": len(store.decoded)}
    rows, reason = dict(document), None
    try:
        version.open_store(2)
    except NotRepresentableError as error:
        # all requests to /zarr2/ fail with this error
        document["without_zarr2"] = list(error.names)
        names = ", ".join(map(repr, error.names))
        reason = f"none: it cannot represent {names}; leave them out with --drop-variables"
    if check:
        print_report(document, rows | ({"Zarr v2": reason} if reason else {}))
        return
    server = make_uvicorn_server(app)
    listener = bind_socket(host, port)
    url = get_socket_url(listener)
    zarr, zarr2 = f"{url}zarr/", f"{url}zarr2/"
    print_report(
        {"url": url, **document, "zarr": zarr, "zarr2": None if reason else zarr2},
        {"url": url, **rows, "Zarr v3": zarr, "Zarr v2": reason or zarr2},
    )
    run(server, listener)


@command(
    "view",
    examples=(
        ("Look at a set in the browser", "virtualds view refs.zarr"),
        ("Look at files without a set", "virtualds view 'data/*.nc' --concat-dim time"),
        ("Print the address, and open no browser", "virtualds view refs.zarr --no-browser"),
    ),
)
@add_file_arguments
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Port of this machine; without it 8000, or a free one.",
)
@click.option("--no-browser", is_flag=True, help="Print the address, and open no browser.")
@click.option("--check", is_flag=True, help="Open what would be shown, report it, and exit.")
@TREE_OPTION
@add_options("snapshot", *MFDATASET_OPTIONS)
def view(
    urls: Sequence[str],
    files_from: IO[str] | None,
    port: int | None,
    no_browser: bool,
    check: bool,
    tree: str | None,
    **options: Any,
) -> None:
    """Look at a set or files in the browser.

    The page shows the variables, draws slices and series, and says from which file and chunk each
    value comes. It reads only the chunks that a picture needs. URLS are the same as for serve. Only
    this machine can connect, with the token of the address that is printed. Ctrl-C ends it.
    """
    from virtualds_server.app import (
        bind_socket,
        create_app,
        get_socket_url,
        make_uvicorn_server,
        run,
    )

    served = replace(make_served_data(urls, files_from, tree, options), is_private=True)
    # other users of the machine can connect, too
    token = secrets.token_urlsafe(16)
    app = create_app(served, token=token)
    # open it now, so that errors are printed here
    contents = app.state.server.tracker.get().open_archive().describe()
    document = {
        "shown": served.name,
        "variables": sum(len(group["variables"]) for group in contents["groups"]),
        "first": contents["first"],
    }
    if check:
        print_report(document, document)
        return
    server = make_uvicorn_server(app, logs_requests=False)
    listener = None
    if port is None:
        with suppress(OSError):
            listener = bind_socket("127.0.0.1", 8000)
    listener = listener or bind_socket("127.0.0.1", port or 0)
    url = f"{get_socket_url(listener)}?token={token}"
    document = {"url": url, **document}
    print_report(document, document)
    if not no_browser:
        # webbrowser.open waits until a text browser ends
        Thread(target=webbrowser.open, args=(url,), daemon=True).start()
    run(server, listener)


def make_served_data(
    urls: Sequence[str],
    files_from: IO[str] | None,
    tree: str | None,
    options: Mapping[str, Any],
) -> ServedData:
    """Return what to serve: a single set or file, or files to combine."""
    from virtualds.stores.listing import is_pattern
    from virtualds_server.versions import ServedData

    paths = list_paths(urls, files_from, options["storage_options"])
    combine_options = select_options(options, (n for n in options if n not in SERVE_OPTIONS))
    if isinstance(paths, str) and not (is_pattern(paths) or combine_options or tree):
        return ServedData.of(paths, select_options(options, SERVE_OPTIONS))
    if options["snapshot"] is not None:
        raise click.UsageError(
            "--snapshot applies to a reference set; give a single set and no combine options"
        )
    storage_options = options["storage_options"]
    open_options = {name: value for name, value in options.items() if name != "snapshot"}

    def open_again() -> Any:
        # new files may match a pattern
        files = list_paths(urls, None, storage_options) if files_from is None else paths
        return open_files(files, None, open_options, tree)

    return ServedData.of_files(urls if files_from is None else paths, open_again, storage_options)
