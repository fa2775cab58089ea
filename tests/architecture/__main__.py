"""Regenerate the diagrams in `docs/internals/architecture.md`: `make architecture`."""

from tests.architecture import picture

if __name__ == "__main__":
    picture.write()
