"""The program that breaks the code makes breaks that are code, and runs tests against them."""

from pathlib import Path

import pytest
from mutation.__main__ import (
    PACKAGE,
    choose_breaks,
    copy_with,
    drop_line_number,
    list_packages,
    list_stages,
    run_tests,
)
from mutation.breaks import list_breaks


@pytest.mark.parametrize("package", list_packages())
def test_breaks_of_each_package_are_code_and_no_other_file_changes(
    package: str, tmp_path: Path
) -> None:
    breaks = choose_breaks(package, 5, seed=1)
    assert breaks == choose_breaks(package, 5, seed=1) != choose_breaks(package, 5, seed=2)
    for made in breaks:
        text = (PACKAGE / made.module).read_text()
        broken = made.apply(text)
        assert broken != text
        compile(broken, made.module, "exec")
    copy_with(breaks[0], tmp_path)
    copied = (tmp_path / "virtualds").rglob("*.py")
    differ = [
        path.relative_to(tmp_path / "virtualds").as_posix()
        for path in copied
        if path.read_text() != (PACKAGE / path.relative_to(tmp_path / "virtualds")).read_text()
    ]
    assert differ == [breaks[0].module]


@pytest.mark.soak
def test_a_break_is_found_by_the_tests_that_name_it(tmp_path: Path) -> None:
    breaks = list_breaks(PACKAGE, PACKAGE / "errors.py")
    [made] = [found for found in breaks if found.after == "count != 1"]
    assert str(made).endswith("format_bytes: count == 1 -> count != 1")
    copy_with(made, tmp_path / "broken")
    tests = [str(Path(__file__).with_name("test_quantities.py"))]
    assert tests[0] in next(list_stages(made))
    passes, line = run_tests(tmp_path / "broken", tests, workers=1)
    assert not passes and "test_quantities" in line
    assert run_tests(PACKAGE.parent, tests, workers=1)[0]


def test_a_break_is_known_without_its_line() -> None:
    said = "codecs/zlib.py:12 Zlib.decode: 1 -> 2"
    assert drop_line_number(said) == drop_line_number(said.replace("12", "13"))
    assert drop_line_number(said) != said
