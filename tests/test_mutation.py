"""The program that breaks the code makes breaks that are code, and runs tests that reach them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from mutation.__main__ import (
    PACKAGE,
    break_project,
    choose_breaks,
    drop_line_number,
    list_packages,
)
from mutation.forked import PROJECT


@pytest.mark.parametrize("package", list_packages())
def test_breaks_of_each_package_are_code(package: str) -> None:
    breaks = choose_breaks(package, 5, seed=1)
    assert breaks == choose_breaks(package, 9, seed=1)[:5]
    assert breaks != choose_breaks(package, 5, seed=2)
    for made in breaks:
        text = (PACKAGE / made.module).read_text()
        broken = made.apply(text)
        assert broken != text
        compile(broken, made.module, "exec")


def test_no_other_file_of_the_project_changes(tmp_path: Path) -> None:
    for made in [*choose_breaks("chunks", 2, seed=1), *choose_breaks("formats", 1, seed=1)]:
        break_project(tmp_path, made)
        copied = [path for path in tmp_path.rglob("*.py") if "__pycache__" not in path.parts]
        differ = [
            path.relative_to(tmp_path / "virtualds").as_posix()
            for path in copied
            if path.read_text() != (PROJECT / path.relative_to(tmp_path)).read_text()
        ]
        assert differ == [made.module]


RUN = """
import json, sys
from pathlib import Path
from mutation.__main__ import PACKAGE, break_project, copy_project, run_tests
from mutation.breaks import list_breaks
from mutation.reach import Reach, measure

folder = Path(sys.argv[1])
measure("pictures", list((PACKAGE.parent / "tests/pictures").glob("test_*.py")), folder)
breaks = list_breaks(PACKAGE, PACKAGE / "pictures/__init__.py")
[made] = [b for b in breaks if b.function == "Table.select_columns" and b.after == "None"]
tests = Reach(folder).order_tests(made)
break_project(folder / "broken", made)
found = run_tests(folder / "broken", tests, limit=300)
copy_project(folder / "broken")
found_without = run_tests(folder / "broken", tests, limit=300)
state = folder / "pictures-0.measured"
state.write_text(json.dumps({**json.loads(state.read_text()), "modules": {}}))
later = Reach(folder).order_tests(made)
print(json.dumps([tests, found, found_without, later]))
"""


@pytest.mark.soak
def test_a_break_is_found_by_a_test_that_executes_its_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUN, tmp_path], cwd=PROJECT / "tests", capture_output=True, text=True
    )
    assert not done.returncode, done.stderr
    tests, found, found_without, later = json.loads(done.stdout)
    file = "tests/pictures/test_text.py::"
    executing = tests.index(f"{file}test_columns_are_as_wide_as_what_is_shown")
    assert executing < tests.index(f"{file}test_the_narrowest_terminal_has_a_text")
    assert found in tests[: executing + 1] and not found_without
    # in a module that has changed, its line may be another one
    assert set(later) == set(tests) and later != tests


def test_a_break_is_known_without_its_line() -> None:
    said = "codecs/zlib.py:12 Zlib.decode: 1 -> 2"
    assert drop_line_number(said) == drop_line_number(said.replace("12", "13"))
    assert drop_line_number(said) != said
