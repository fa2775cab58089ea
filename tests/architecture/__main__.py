"""Writes the picture in `docs/internals/architecture.md` anew: `make architecture`."""

from tests.architecture import picture

if __name__ == "__main__":
    picture.write()
