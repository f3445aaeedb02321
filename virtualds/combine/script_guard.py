"""Checking whether new processes would run the user's script again.

A spawned process imports the script of its parent. If the script starts processes at its top level,
each of them would start processes again. Python refuses that in the child, which breaks the pool of
the parent sooner or later. So the script is checked first.
"""

from __future__ import annotations

import ast
import os
import sys
import tokenize
from multiprocessing.spawn import get_preparation_data
from types import FrameType


def check_script(number: int) -> None:
    """Refuse to start processes at the top level of a script that they would run again.

    Scripts that use other conditions than ``if __name__ == "__main__":`` are accepted.

    Parameters
    ----------
    number : int
        Number of processes to start.

    Raises
    ------
    RuntimeError
        This process is just starting, and runs the script of its parent; or every process would run
        the script.
    """
    script = _find_imported_script()
    frame = None if script is None else _find_top_frame(script)
    if script is not None and frame is not None and _is_run_again(script, frame.f_lineno):
        raise RuntimeError(
            f"{script}, line {frame.f_lineno}: {number} more processes are to be started, and each "
            f"would run this line again, since it imports the script; move the line below "
            f"`if __name__ == '__main__':`, or pass parallel=1, which starts none"
        )


def _find_imported_script() -> str | None:
    """Return the script that processes import, if there is one; packages are not imported."""
    # raises in a process that is just starting
    data = get_preparation_data("virtualds")
    if data.get("init_main_from_name", "__main__").endswith("__main__"):
        return data.get("init_main_from_path")
    return getattr(sys.modules["__main__"], "__file__", None)


def _find_top_frame(script: str) -> FrameType | None:
    """Return the frame of the running script, if this is called from its top level."""
    variables = vars(sys.modules["__main__"])
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        code = frame.f_code
        # lines typed after a script share its variables
        is_there = frame.f_globals is variables and code.co_name == "<module>"
        if is_there and os.path.abspath(code.co_filename) == os.path.abspath(script):
            return frame
        frame = frame.f_back
    return None


def _is_run_again(script: str, line: int) -> bool:
    """Say whether importing a script runs a line; no also means unknown."""
    try:
        with tokenize.open(script) as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return False  # it is not text, or has changed since
    guards = [node for node in tree.body if isinstance(node, ast.If) and _is_guard(node.test)]
    if any(node.body[0].lineno <= line <= (node.body[-1].end_lineno or 0) for node in guards):
        return False
    known = [node.test for node in guards]
    # other conditions may exclude this line
    return not any(_is_compared_with_name(node) and node not in known for node in ast.walk(tree))


def _is_guard(test: ast.expr) -> bool:
    """Say whether a condition is true only in a script that is run, not imported."""
    if not isinstance(test, ast.Compare) or not _is_compared_with_name(test):
        return False
    sides = (test.left, *test.comparators)
    values = [side.value for side in sides if isinstance(side, ast.Constant)]
    return values == ["__main__"] and isinstance(test.ops[0], ast.Eq)


def _is_compared_with_name(node: ast.AST) -> bool:
    """Say whether something is compared with the name of the module."""
    sides = (node.left, *node.comparators) if isinstance(node, ast.Compare) else ()
    return any(isinstance(side, ast.Name) and side.id == "__name__" for side in sides)
