"""The commands: one file for each, and here their table."""

from virtualds_cli.command import Command
from virtualds_cli.commands.append import append
from virtualds_cli.commands.clean_up import clean_up
from virtualds_cli.commands.compact import compact
from virtualds_cli.commands.completion import completion
from virtualds_cli.commands.convert import convert
from virtualds_cli.commands.demo import demo
from virtualds_cli.commands.diagnose import diagnose
from virtualds_cli.commands.drop_sources import drop_sources
from virtualds_cli.commands.edit import edit
from virtualds_cli.commands.expire_snapshots import expire_snapshots
from virtualds_cli.commands.info import info
from virtualds_cli.commands.rename_paths import rename_paths
from virtualds_cli.commands.scan import scan
from virtualds_cli.commands.snapshots import snapshots
from virtualds_cli.commands.sync import sync
from virtualds_cli.commands.verify import verify

COMMANDS: tuple[Command, ...] = (
    scan,
    append,
    sync,
    info,
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
    demo,
    completion,
)
