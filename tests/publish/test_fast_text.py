"""Ids and times of events as text: the fast conversion equals the standard one."""

from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as some

from penstock.model.event import encode_time
from penstock.publish.fast_text import created_at_text, event_id_text
from penstock.testing.events import delivery


@given(some.uuids())
def test_an_id_is_the_same_text_raw_or_not(event_id: UUID) -> None:
    for form in (event_id, event_id.bytes):
        assert event_id_text(delivery(event_id=form)) == str(event_id)


@given(some.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1), timezones=some.just(UTC)))
def test_a_time_is_the_same_text_raw_or_not(moment: datetime) -> None:
    for form in (moment, moment.replace(microsecond=0)):
        assert created_at_text(delivery(created_at=form)) == form.isoformat()
        assert created_at_text(delivery(created_at=encode_time(form))) == form.isoformat()


def test_a_time_in_another_zone_keeps_it() -> None:
    moment = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    assert created_at_text(delivery(created_at=moment)) == "2026-01-01T12:00:00+02:00"
