"""Scripts may start processes, but at their top level that is one clear error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from effort import others_soaked, times
from small_archive import write

from virtualds.combine.workers import _is_run_again

BUILD = "virtualds.open_virtual_mfdataset('*.nc', combine='nested', concat_dim='time', parallel=2)"
TOP = f"import virtualds\nprint({BUILD}.sizes['time'])\n"
FUNCTION = f"import virtualds\n\ndef build():\n    return {BUILD}.sizes['time']\n\n"
GUARD = "if __name__ == '__main__':\n    print(build())\n"

WITHOUT = {
    "at the top": TOP,
    "in a function": FUNCTION + "print(build())\n",
    "in a loop": FUNCTION + "for n in range(1):\n    print(build())\n",
    "in a condition": FUNCTION + "import sys\nif sys.argv:\n    print(build())\n",
    "with a logger": "import logging\nlog = logging.getLogger(__name__)\n" + TOP,
    "beside a guard": FUNCTION + "print(build())\n" + GUARD,
    "in what a guard leaves": FUNCTION + "if __name__ == '__main__':\n    pass\nprint(build())\n",
}
WITH = {
    "with a guard": FUNCTION + GUARD,
    "with a guard the other way round": FUNCTION
    + GUARD.replace("__name__ == '__main__'", "'__main__' == __name__"),
    "that leaves early": FUNCTION
    + "import sys\nif __name__ != '__main__':\n    sys.exit = print\nelse:\n    print(build())\n",
}


NO_SCRIPTS = {
    "an argument": (("-c", TOP), ""),
    "a stream": (("-",), TOP),
    "a package": (("-m", "package"), ""),
    "a session": (("-i", "empty.py"), TOP),
}
"""Programs that processes do not import: how they are started, and what is typed in."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a few small files."""
    found = tmp_path_factory.mktemp("guarded")
    for number in range(4):
        write(found / f"{number}.nc", number)
    return found


def run(folder: Path, *command: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=folder,
        input=stdin,
    )


REFUSED = ("at the top", "beside a guard", "in what a guard leaves")


@pytest.mark.parametrize("form", others_soaked(WITHOUT, REFUSED))
def test_a_script_without_a_guard_is_refused_at_once(form: str, folder: Path) -> None:
    (folder / "script.py").write_text(WITHOUT[form])
    said = run(folder, "script.py")
    assert (said.returncode, said.stdout) == (1, "")
    assert said.stderr.count("Traceback") == 1
    last = said.stderr.splitlines()[-1]
    assert last.startswith("RuntimeError: ")
    assert "script.py, line " in last
    assert "if __name__ == '__main__':" in last


@pytest.mark.full
def test_a_script_without_a_guard_fails_with_the_same_error_each_time(folder: Path) -> None:
    (folder / "script.py").write_text(TOP)
    (folder / "module.py").write_text(TOP)
    told = {run(folder, "script.py").stderr for _ in range(times(2))}
    assert len(told) == 1
    assert "line 2: 1 more processes" in run(folder, "-m", "module").stderr.splitlines()[-1]


@pytest.mark.parametrize("form", others_soaked(WITH, ("with a guard", "that leaves early")))
def test_a_script_with_a_guard_builds(form: str, folder: Path) -> None:
    (folder / "script.py").write_text(WITH[form])
    said = run(folder, "script.py")
    assert (said.returncode, said.stdout, said.stderr) == (0, "8\n", "")


@pytest.mark.full
@pytest.mark.parametrize("way", others_soaked(NO_SCRIPTS, ("an argument", "a package")))
def test_programs_that_no_process_imports_need_no_guard(way: str, folder: Path) -> None:
    package = folder / "package"
    package.mkdir(exist_ok=True)
    (package / "__main__.py").write_text(TOP)
    (folder / "empty.py").write_text("")
    command, stdin = NO_SCRIPTS[way]
    said = run(folder, *command, stdin=stdin)
    assert (said.returncode, said.stdout) == (0, "8\n"), said.stderr


def test_a_line_is_run_again_unless_a_condition_may_exclude_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nif 1 < 2:\n    print()\n" + GUARD)
    assert _is_run_again(str(script), 3)
    assert not _is_run_again(str(script), 5)
    script.write_text("import sys\nif __name__ > 'a':\n    print()\n")
    assert not _is_run_again(str(script), 3)
