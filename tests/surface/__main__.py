"""Freeze the current public surface: `make surface`."""

import tempfile
from pathlib import Path

from tests.support.servers import PostgresServer
from tests.surface import commands, dotted_paths, frozen_file, http_api, json_keys, lake, names, tables


def main() -> None:
    """Rewrite every frozen file."""
    with tempfile.TemporaryDirectory() as folder, PostgresServer(fsync=False) as server:
        found = {
            "names": names.lines(),
            "dotted_paths": dotted_paths.lines(),
            "commands": commands.lines(),
            "tables": tables.lines(f"sqlite:///{folder}/tables.db", server.create_database()),
            "json_keys": json_keys.lines(Path(folder)),
            "http_api": http_api.lines(),
            "lake": lake.lines(),
        }
    for name, lines in found.items():
        for change in frozen_file.difference(name, lines):
            print(f"{name}: {change}")
        frozen_file.write(name, lines)


if __name__ == "__main__":
    main()
