"""The public surface equals its frozen form: names, commands, tables, keys, requests and files."""

from pathlib import Path

import pytest

from tests.surface import commands, dotted_paths, frozen_file, http_api, json_keys, lake, names, tables

ADVICE = "Is that deliberate? Accept it with `make surface`, and list it in CHANGELOG.md."


def assert_frozen(name: str, lines: list[str]) -> None:
    if change := frozen_file.difference(name, lines):
        pytest.fail("\n".join([f"{name} changed:", *change, ADVICE]), pytrace=False)


def test_public_names_are_frozen() -> None:
    assert_frozen("names", names.lines())


def test_documented_paths_are_frozen() -> None:
    assert_frozen("dotted_paths", dotted_paths.lines())


def test_documented_paths_resolve() -> None:
    paths = {*dotted_paths.lines(), *frozen_file.read("dotted_paths")}
    assert [path for path in sorted(paths) if not dotted_paths.resolves(path)] == []


def test_commands_are_frozen() -> None:
    assert_frozen("commands", commands.lines())


def test_tables_are_frozen(tmp_path: Path, postgres_url: str) -> None:
    assert_frozen("tables", tables.lines(f"sqlite:///{tmp_path}/shop.db", postgres_url))


def test_json_keys_are_frozen(tmp_path: Path) -> None:
    assert_frozen("json_keys", json_keys.lines(tmp_path))


def test_every_command_with_json_is_run() -> None:
    run = {f"penstock {command.partition(' --')[0]}" for command, _ in (("init", ""), *json_keys.COMMANDS)}
    assert run == commands.with_json()


def test_http_api_is_frozen() -> None:
    assert_frozen("http_api", http_api.lines())


def test_lake_names_are_frozen() -> None:
    assert_frozen("lake", lake.lines())


def test_change_fails_with_difference_and_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen_file, "FOLDER", tmp_path)
    frozen_file.write("names", ["penstock.Event", "penstock.connect()"])
    assert_frozen("names", ["penstock.Event", "penstock.connect()"])
    with pytest.raises(pytest.fail.Exception) as failure:
        assert_frozen("names", ["penstock.Event", "penstock.connect(url)"])
    assert str(failure.value).splitlines()[1:] == ["- penstock.connect()", "+ penstock.connect(url)", ADVICE]


def test_missing_paths_do_not_resolve() -> None:
    assert dotted_paths.resolves("penstock.RetryPolicy.constant")
    assert not dotted_paths.resolves("penstock.RetryPolicy.constantly")
    assert not dotted_paths.resolves("penstock.nowhere")
