"""Finding the App in a file or a module, and saying why it cannot be found."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgworkers import AppNotLoaded
from pgworkers.app import detect_version
from pgworkers.app_import import import_app
from pgworkers.postgres.database_choice import app_directory

APP = "from pgworkers import App\n{name} = App()\n{name}.queue('q')\n"


@pytest.fixture(autouse=True)
def own_imports() -> Iterator[None]:
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def write(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, errors="surrogateescape")
    return str(path)


def test_a_file_with_one_app(tmp_path: Path) -> None:
    config = write(tmp_path / "one_app.py", APP.format(name="anything"))
    app = import_app(config)
    assert (app.name, app.source_file) == ("one_app.py", tmp_path / "one_app.py")
    assert import_app(config) is app
    assert import_app(f"{config}:anything") is app


def test_a_relative_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "sub" / "rel_app.py", "import beside\n" + APP.format(name="app"))
    write(tmp_path / "sub" / "beside.py", "")
    monkeypatch.chdir(tmp_path)
    assert import_app("sub/rel_app.py").source_file == tmp_path / "sub" / "rel_app.py"
    assert sys.path[0] == str(tmp_path / "sub")


def test_functions_of_a_loaded_file_can_be_pickled(tmp_path: Path) -> None:
    config = write(
        tmp_path / "pickled_app.py",
        APP.format(name="app") + "@app.task\ndef f() -> None: ...\ndef g(): ...\n",
    )
    task = import_app(config).tasks["f"]
    assert pickle.loads(pickle.dumps(task)) is task
    function = sys.modules["pickled_app"].g
    assert pickle.loads(pickle.dumps(function)) is function


def test_a_file_inside_a_package_may_import_relatively(tmp_path: Path) -> None:
    write(tmp_path / "shop_pkg" / "__init__.py", "")
    write(tmp_path / "shop_pkg" / "names.py", "QUEUE = 'orders'\n")
    config = write(
        tmp_path / "shop_pkg" / "jobs.py",
        "from pgworkers import App\nfrom .names import QUEUE\napp = App()\napp.queue(QUEUE)\n",
    )
    app = import_app(config)
    assert list(app.queues) == ["orders"]
    assert sys.modules["shop_pkg.jobs"].app is app


def test_a_dotted_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "dotted_pkg" / "__init__.py", "")
    write(tmp_path / "dotted_pkg" / "mod.py", APP.format(name="app"))
    monkeypatch.chdir(tmp_path)
    assert import_app("dotted_pkg.mod") is import_app("dotted_pkg.mod:app")


@pytest.mark.parametrize(
    ("text", "suffix", "said"),
    [
        ("", "", "no App in it"),
        (APP.format(name="a") + APP.format(name="b"), "", "several Apps in it (a, b); say which one"),
        (APP.format(name="a"), ":b", "no App called 'b': there is no such name"),
        ("b = 3\n", ":b", "no App called 'b': it is a int"),
        ("1 / 0\n", "", "ZeroDivisionError: division by zero (line 1 of"),
        ("import nosuchmodule\n", "", "No module named 'nosuchmodule'"),
        ("x = 1\ndef (\n", "", "SyntaxError: invalid syntax (line 2 of"),
        ("x = 1\ny = '\udcff'\n", "", "invalid start byte (line 2 of"),
        ("# coding: nonsense\n", "", "unknown encoding: nonsense (line 1 of"),
        ("raise SystemExit(3)\n", "", "called sys.exit() while being imported"),
        (
            "from pgworkers import App\napp = App()\napp.queue('')\n",
            "",
            "UsageError: queue name: '' is empty",
        ),
    ],
)
def test_why_a_file_cannot_be_loaded(tmp_path: Path, text: str, suffix: str, said: str) -> None:
    config = write(tmp_path / "broken_app.py", text) + suffix
    for _ in range(2):  # a failed import leaves nothing behind that hides the failure
        with pytest.raises(AppNotLoaded) as caught:
            import_app(config)
        assert said in str(caught.value)
        assert "\n" not in str(caught.value)


def test_the_traceback_begins_in_the_users_code(tmp_path: Path) -> None:
    config = write(tmp_path / "deep_broken_app.py", "def f():\n    return 1 / 0\nf()\n")
    with pytest.raises(AppNotLoaded) as caught:
        import_app(config)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert "return 1 / 0" in caught.value.traceback
    assert "importlib" not in caught.value.traceback
    assert "loading.py" not in caught.value.traceback


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("/nowhere/app.py", "there is no such file"),
        ("/tmp/", "it is a directory"),
        ("nosuch_pkg.mod:app", "there is no module nosuch_pkg.mod"),
        ("nosuch_pkg", "there is no module nosuch_pkg"),
        ("not a name", "neither a file nor a module name"),
        (":app", "names no app"),
        ("", "names no app"),
    ],
)
def test_what_is_not_there(config: str, said: str) -> None:
    with pytest.raises(AppNotLoaded) as caught:
        import_app(config)
    assert said in str(caught.value)


def test_a_module_whose_parent_fails_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "failing_pkg" / "__init__.py", "raise ValueError('parent')\n")
    write(tmp_path / "failing_pkg" / "mod.py", APP.format(name="app"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AppNotLoaded, match="ValueError: parent"):
        import_app("failing_pkg.mod")


def test_a_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    config = write(tmp_path / "json.py", APP.format(name="app"))
    with pytest.raises(
        AppNotLoaded, match=r"a module called json is already loaded from .*; give the file another name"
    ):
        import_app(config)


def test_release_is_the_commit_or_a_hash_of_the_files(tmp_path: Path) -> None:
    config = Path(write(tmp_path / "repo" / "sub" / "app.py", ""))
    before = detect_version(config)
    assert before.startswith("files-")
    os.utime(config, (1, 1))
    assert detect_version(config) != before
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@x", "-C", str(tmp_path / "repo")]
    subprocess.run([*git, "init", "-q"], check=True, timeout=30)
    assert detect_version(config).startswith("files-")  # no commit yet
    subprocess.run([*git, "add", "."], check=True, timeout=30)
    subprocess.run([*git, "commit", "-q", "-m", "x"], check=True, timeout=30)
    head = subprocess.run(
        [*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True, timeout=30
    ).stdout
    assert detect_version(config) == head[:10]
    subprocess.run([*git, "pack-refs", "--all"], check=True, timeout=30)
    assert detect_version(config) == head[:10]
    subprocess.run([*git, "worktree", "add", "-q", str(tmp_path / "tree")], check=True, timeout=30)
    assert detect_version(tmp_path / "tree" / "sub" / "app.py") == head[:10]
    subprocess.run([*git, "checkout", "-q", "--detach"], check=True, timeout=30)
    assert detect_version(config) == head[:10]


@pytest.mark.parametrize(
    ("config", "file"),
    [
        ("beside_app.py", "beside_app.py"),
        ("beside_dir/app.py:app", "beside_dir/app.py"),
        ("beside_mod", "beside_mod.py"),
        ("beside_mod:app", "beside_mod.py"),
        ("beside_pkg.deep.mod:app", "beside_pkg/deep/mod.py"),
        ("beside_whole", "beside_whole/__init__.py"),
    ],
)
def test_the_embedded_server_of_a_command_is_that_of_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str, file: str
) -> None:
    write(tmp_path / "beside_pkg" / "__init__.py", "1 / 0")
    write(tmp_path / file, APP.format(name="app"))
    monkeypatch.chdir(tmp_path)
    assert app_directory(config) == (tmp_path / file).resolve().parent, "known although nothing was imported"
    write(tmp_path / "beside_pkg" / "__init__.py", "")
    assert import_app(config).source_file.parent == app_directory(config)


def test_an_app_that_is_not_there_is_looked_for_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for config in (None, "", "nosuch.mod:app", "no such", ":app"):
        assert app_directory(config) == tmp_path.resolve(), config
