"""The commands by purpose; `virtualds_cli.program` has their table."""
