"""Ids and times of events as text: the fast conversion equals the standard one."""

from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as some

from penstock.model.event import encode_time
from penstock.publish.fast_text import created_at_text, event_id_text
from penstock.testing.events import delivery


@given(some.uuids())
def test_id_text_is_equal_for_uuid_and_bytes(event_id: UUID) -> None:
    for form in (event_id, event_id.bytes):
        assert event_id_text(delivery(event_id=form)) == str(event_id)


@given(some.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1), timezones=some.just(UTC)))
def test_time_text_is_equal_for_datetime_and_encoded_time(moment: datetime) -> None:
    for form in (moment, moment.replace(microsecond=0)):
        assert created_at_text(delivery(created_at=form)) == form.isoformat()
        assert created_at_text(delivery(created_at=encode_time(form))) == form.isoformat()


def test_time_keeps_its_time_zone() -> None:
    moment = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    assert created_at_text(delivery(created_at=moment)) == "2026-01-01T12:00:00+02:00"
