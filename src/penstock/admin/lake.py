"""Operations on lakes, which need a store and Spark."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec

from penstock.model.errors import MissingDriver
from penstock.model.selection import Selection
from penstock.pipeline.lake.layout import Lake
from penstock.pipeline.lake.replay import LakeReplay, check_selection
from penstock.pipeline.spark.session import open_session
from penstock.store.registry import open_store


@contextmanager
def lake_replay(store: str, lake: str, selection: Selection, *, master: str | None = None) -> Iterator[LakeReplay]:
    """Open a selection of a lake's events for replay. Selection, lake, PySpark and store are checked first."""
    check_selection(selection)
    Lake.parse(lake)
    if find_spec("pyspark") is None:
        raise MissingDriver("the lake", "spark")
    with closing(open_store(store)) as opened:
        opened.stats()
        yield LakeReplay(open_session(master, "penstock replay"), lake, selection, opened)
