"""Benchmark of queues on object storage, in a run so short that only the report's structure is checked."""

import pytest

from benchmarks.objects import ObjectsPlan, measure
from tests.support.servers import S3Server


@pytest.mark.slow
def test_report_has_consistent_figures(s3_server: S3Server) -> None:
    measured = measure(s3_server, ObjectsPlan(clients=4, seconds=0.3, rounds=1, way_seconds=0.002))
    values = {figure.name: figure.value for figure in measured.figures}
    for place in ("S3 on this machine", "S3, 2 ms away"):
        names = [f"{place}: {what}" for what in ("grouped", "one by one", "changes in a write", "grouped / one by one")]
        grouped, single, changes, ratio = (values.pop(name) for name in names)
        assert grouped > 0
        assert single > 0
        assert 0 < changes <= 4
        assert ratio == pytest.approx(grouped / single)
    assert values == {}
