"""Jars of Spark's Kafka connector: found before Spark starts, or an error says how to provide them."""

from pathlib import Path

import pytest

from penstock.model.errors import UsageError
from penstock.pipeline.spark.installation import core_jar
from penstock.pipeline.streams.sources.kafka.connector_jars import PARTS, VARIABLE, connector_jars, coordinates
from penstock.pipeline.streams.sources.kafka.source import reader_options
from penstock.streams.sources import Kafka

CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.9.1"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a machine with Spark but without the connector."""
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    (tmp_path / "spark" / "jars" / "spark-core_2.13-4.9.1.jar").touch()
    return {"SPARK_HOME": str(tmp_path / "spark"), "XDG_CACHE_HOME": str(tmp_path / "cache")}


def put_jars(folder: Path, parts: tuple[str, ...] = PARTS) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    jars = sorted(folder / f"{part}_2.13-1.jar" for part in parts)
    for jar in jars:
        jar.touch()
    return jars


def test_named_jar_folder_precedes_variable_and_cache(environment: dict[str, str], tmp_path: Path) -> None:
    fetched = put_jars(tmp_path / "cache" / "penstock" / "spark-kafka-4.9.1")
    assert connector_jars(None, environment) == (*fetched,)
    mine = put_jars(tmp_path / "mine")
    assert connector_jars(None, {**environment, VARIABLE: str(tmp_path / "mine")}) == (*mine,)
    theirs = put_jars(tmp_path / "theirs")
    assert connector_jars(str(tmp_path / "theirs"), {**environment, VARIABLE: str(tmp_path / "mine")}) == (*theirs,)


def test_jars_cached_for_another_spark_version_are_ignored(environment: dict[str, str], tmp_path: Path) -> None:
    put_jars(tmp_path / "cache" / "penstock" / "spark-kafka-4.8.0")
    with pytest.raises(UsageError):
        connector_jars(None, environment)


def test_spark_with_connector_needs_no_jars(environment: dict[str, str], tmp_path: Path) -> None:
    put_jars(tmp_path / "spark" / "jars")
    assert connector_jars(None, environment) == ()


def test_connector_in_submit_arguments_needs_no_jars(environment: dict[str, str]) -> None:
    with_packages = {**environment, "PYSPARK_SUBMIT_ARGS": f"--packages {CONNECTOR} pyspark-shell"}
    assert connector_jars(None, with_packages) == ()


def test_missing_connector_error_names_remedies(environment: dict[str, str]) -> None:
    with pytest.raises(UsageError) as error:
        connector_jars(None, environment)
    for hint in (CONNECTOR, VARIABLE, "jars=", "spark.jars.packages", *PARTS):
        assert hint in str(error.value)


@pytest.mark.parametrize("missing", PARTS)
def test_incomplete_jar_folder_error_names_missing_jar(
    environment: dict[str, str], tmp_path: Path, missing: str
) -> None:
    put_jars(tmp_path / "mine", tuple(part for part in PARTS if part != missing))
    with pytest.raises(UsageError, match=f"mine has no {missing}"):
        connector_jars(str(tmp_path / "mine"), environment)


def test_nonexistent_jar_folder_is_refused(environment: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="none-such has no spark-sql-kafka"):
        connector_jars(str(tmp_path / "none-such"), environment)


def test_versions_are_read_from_spark_core_jar(environment: dict[str, str], tmp_path: Path) -> None:
    assert core_jar(tmp_path / "spark") == ("2.13", "4.9.1")
    assert coordinates(environment) == CONNECTOR


def test_user_options_override_defaults() -> None:
    options = reader_options(Kafka("broker:9092", "orders", {"STARTINGOFFSETS": "latest", "kafka.group.id": "mine"}))
    assert options == {
        "kafka.bootstrap.servers": "broker:9092",
        "subscribe": "orders",
        "includeHeaders": "true",
        "STARTINGOFFSETS": "latest",
        "maxOffsetsPerTrigger": "100000",
        "failOnDataLoss": "true",
        "kafka.isolation.level": "read_committed",
        "kafka.group.id": "mine",
    }
    assert reader_options(Kafka("broker", "orders-.*", pattern=True))["subscribePattern"] == "orders-.*"


@pytest.mark.parametrize("name", ["subscribe", "assign", "includeHeaders", "kafka.bootstrap.servers"])
def test_reserved_options_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"option '{name}' cannot be set"):
        reader_options(Kafka("broker", "orders", {name: "x"}))


def test_source_without_servers_or_topics_is_refused() -> None:
    with pytest.raises(UsageError, match="missing servers or topics of the Kafka source"):
        Kafka("", "orders")
    with pytest.raises(UsageError, match="missing servers or topics of the Kafka source"):
        Kafka("broker", "")


def test_secret_options_are_not_shown() -> None:
    source = Kafka("broker", "orders", {"kafka.sasl.jaas.config": "password='secret'"})
    assert "secret" not in f"{source} {source!r}"
