"""``python -m virtualds_cli``, for a program that is not on the path."""

from virtualds_cli.program import main

main(prog_name="virtualds")
