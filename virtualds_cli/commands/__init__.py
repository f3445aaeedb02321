"""The commands by purpose, and their table."""

from virtualds_cli.command import Command
from virtualds_cli.commands.build import append, convert, scan, sync
from virtualds_cli.commands.check import catalog, diagnose, info, verify
from virtualds_cli.commands.keep import (
    clean_up,
    compact,
    drop_sources,
    edit,
    expire_snapshots,
    rename_paths,
    snapshots,
)
from virtualds_cli.commands.serve import serve, view
from virtualds_cli.commands.start import completion, demo

COMMANDS: tuple[Command, ...] = (
    scan,
    append,
    sync,
    info,
    catalog,
    verify,
    diagnose,
    convert,
    drop_sources,
    edit,
    snapshots,
    expire_snapshots,
    compact,
    clean_up,
    rename_paths,
    serve,
    view,
    demo,
    completion,
)
