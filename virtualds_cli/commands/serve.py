"""``serve`` and ``view``: sets and files over HTTP, as plain Zarr and as a page."""

from __future__ import annotations

import secrets
import webbrowser
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from threading import Thread
from typing import IO, TYPE_CHECKING, Any

import click

from virtualds_cli.command import command
from virtualds_cli.commands.build import TREE, open_files
from virtualds_cli.options import (
    MANY_FILES,
    READING,
    files,
    given,
    list_paths,
    select_given,
)
from virtualds_cli.output import report

if TYPE_CHECKING:
    from virtualds_server import Served

OPENING = ("group", "drop_variables", "snapshot", "on_error", *READING)
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
        ("Look whether it can be served, and end", "virtualds serve refs.zarr --check"),
    ),
)
@files
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="Port to listen at; 0 takes a free one.",
)
@click.option("--threads", type=click.IntRange(1), help="Chunks to read at once. [default: 8]")
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    help="Seconds until a request that is not yet read fails. [default: 60.0]",
)
@click.option("--check", is_flag=True, help="Open what would be served, report it, and end.")
@TREE
@given("snapshot", *MANY_FILES)
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
    no TLS, for which a proxy stands in front.
    """
    from virtualds_server.app import create_app
    from virtualds_server.limits import Limits
    from virtualds_server.run import bind_socket, get_socket_url, make_uvicorn_server, run
    from virtualds_server.versions import NotRepresentableError

    served = find_served(urls, files_from, tree, options)
    chosen = {"threads": threads, "timeout": timeout}
    limits = Limits(**select_given(chosen, chosen))
    app = create_app(served, limits=limits)
    # what cannot be opened is an error now, not of the first request
    version = app.state.server.tracker.get()
    store = version.open_store(3)
    said = {"served": served.name, "arrays": store.count, "decoded": len(store.decoded)}
    shown, reason = dict(said), None
    try:
        version.open_store(2)
    except NotRepresentableError as error:
        # /zarr2/ is an error, as long as it has such an array
        said["without_zarr2"] = list(error.names)
        listed = ", ".join(map(repr, error.names))
        reason = f"none: it has no form for {listed}; leave them out with --drop-variables"
    if check:
        report(said, shown | ({"Zarr v2": reason} if reason else {}))
        return
    server = make_uvicorn_server(app)
    listening = bind_socket(host, port)
    url = get_socket_url(listening)
    zarr, zarr2 = f"{url}zarr/", f"{url}zarr2/"
    report(
        {"url": url, **said, "zarr": zarr, "zarr2": None if reason else zarr2},
        {"url": url, **shown, "Zarr v3": zarr, "Zarr v2": reason or zarr2},
    )
    run(server, listening)


@command(
    "view",
    examples=(
        ("Look at a set in the browser", "virtualds view refs.zarr"),
        ("Look at files without a set", "virtualds view 'data/*.nc' --concat-dim time"),
        ("Print the address, and open no browser", "virtualds view refs.zarr --no-browser"),
    ),
)
@files
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Port of this machine; without it 8000, or a free one.",
)
@click.option("--no-browser", is_flag=True, help="Print the address, and open no browser.")
@click.option("--check", is_flag=True, help="Open what would be shown, report it, and end.")
@TREE
@given("snapshot", *MANY_FILES)
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
    value comes. It reads only the chunks that a picture needs. URLS are as those of serve. Only
    this machine can connect, with the token of the address that is printed. Ctrl-C ends it.
    """
    from virtualds_server.app import create_app
    from virtualds_server.run import bind_socket, get_socket_url, make_uvicorn_server, run

    served = replace(find_served(urls, files_from, tree, options), is_private=True)
    # a machine may have other users
    token = secrets.token_urlsafe(16)
    app = create_app(served, token=token)
    # what cannot be opened is an error now, not of the page
    contents = app.state.server.tracker.get().open_archive().describe()
    said = {
        "shown": served.name,
        "variables": sum(len(group["variables"]) for group in contents["groups"]),
        "first": contents["first"],
    }
    if check:
        report(said, said)
        return
    server = make_uvicorn_server(app, logs_requests=False)
    listening = None
    if port is None:
        with suppress(OSError):
            listening = bind_socket("127.0.0.1", 8000)
    listening = listening or bind_socket("127.0.0.1", port or 0)
    url = f"{get_socket_url(listening)}?token={token}"
    report({"url": url, **said}, {"url": url, **said})
    if not no_browser:
        # a browser of the terminal returns when it ends
        Thread(target=webbrowser.open, args=(url,), daemon=True).start()
    run(server, listening)


def find_served(
    urls: Sequence[str],
    files_from: IO[str] | None,
    tree: str | None,
    options: Mapping[str, Any],
) -> Served:
    """Return one set or file as it is, or else files that are combined."""
    from virtualds.stores.listing import names_files
    from virtualds_server.versions import Served

    found = list_paths(urls, files_from, options["storage_options"])
    combining = select_given(options, (name for name in options if name not in OPENING))
    if isinstance(found, str) and not (names_files(found) or combining or tree):
        return Served.of(found, select_given(options, OPENING))
    if options["snapshot"] is not None:
        raise click.UsageError("--snapshot is of a set; give one set, and nothing to combine")
    listed = [found] if isinstance(found, str) else found
    # files that appear later belong to a pattern, too
    names = list(urls) if files_from is None else listed
    opening = {name: value for name, value in options.items() if name != "snapshot"}
    open_again = partial(list_paths, urls, None, options["storage_options"])
    return Served.of_files(
        names,
        lambda: open_files(open_again() if files_from is None else listed, None, opening, tree),
        options["storage_options"],
    )
