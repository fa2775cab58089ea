"""Ids of Kafka topics: a topic that is deleted and recreated gets a new id.

The ids are requested in Spark's JVM, with the Kafka client of Spark's connector. So the requests use the same settings
as the connector, including keys and passwords.
"""

from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from penstock.model.errors import PipelineError, StoreUnavailable, UsageError
from penstock.streams.sources import Kafka

# Reported by brokers before Kafka 2.8, which have no topic ids.
NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
PREFIX = "kafka."
TIMEOUT = {"default.api.timeout.ms": "30000", "request.timeout.ms": "15000"}


class TopicIds:
    """Admin client of the brokers, open while a stream runs."""

    def __init__(self, spark: SparkSession, source: Kafka, options: Mapping[str, str]) -> None:
        self._source = source
        self._jvm: Any = spark.sparkContext._jvm
        self._matching: dict[str, bool] = {}
        client = {name.removeprefix(PREFIX): value for name, value in options.items() if name.startswith(PREFIX)}
        self._admin: Any = self._open({**TIMEOUT, **client})

    def ask(self) -> dict[str, str]:
        """Return the id of each topic of the source by name, empty if the brokers have no ids.

        Raise `StoreUnavailable` if the brokers cannot answer now.
        """
        from py4j.protocol import Py4JJavaError

        try:
            found = self._matched() if self._source.pattern else self._named()
        except Py4JJavaError as error:
            raise self._failure(error) from error
        return {name: "" if topic_id == NO_ID else topic_id for name, topic_id in found.items()}

    def close(self) -> None:
        self._admin.close()

    def _open(self, settings: Mapping[str, str]) -> Any:
        from py4j.protocol import Py4JJavaError

        properties = self._jvm.java.util.Properties()
        for name, value in settings.items():
            properties.setProperty(name, value)
        try:
            return self._jvm.org.apache.kafka.clients.admin.AdminClient.create(properties)
        except Py4JJavaError as error:
            raise UsageError(f"cannot read {self._source} with these options: {_reason(error)}") from error

    def _named(self) -> dict[str, str]:
        names = self._jvm.java.util.ArrayList()
        for name in self._source.topics.split(","):
            names.add(name.strip())
        described = self._admin.describeTopics(names).allTopicNames().get().values()
        return {topic.name(): topic.topicId().toString() for topic in described}

    def _matched(self) -> dict[str, str]:
        listed = self._jvm.java.util.ArrayList(self._admin.listTopics().listings().get())
        return {topic.name(): topic.topicId().toString() for topic in listed if self._matches(topic.name())}

    def _matches(self, name: str) -> bool:
        """Return True if the topic matches the pattern, by Java's rules as in the connector. Results are cached."""
        if name not in self._matching:
            self._matching[name] = self._jvm.java.util.regex.Pattern.matches(self._source.topics, name)
        return self._matching[name]

    def _failure(self, error: Any) -> Exception:
        cause = error.java_exception.getCause() or error.java_exception
        kind = cause.getClass().getSimpleName()
        if kind == "UnknownTopicOrPartitionException":
            return PipelineError(f"Kafka topic does not exist: {self._source}")
        errors = self._jvm.java.lang.Class.forName
        retriable = errors("org.apache.kafka.common.errors.RetriableException", True, cause.getClass().getClassLoader())
        if retriable.isInstance(cause):
            return StoreUnavailable(f"cannot reach {self._source}: {_reason(error)}")
        return PipelineError(f"cannot read {self._source}: {_reason(error)}")


def _reason(error: Any) -> str:
    """Return the class and message of the innermost cause."""
    cause = error.java_exception
    while cause.getCause() is not None:
        cause = cause.getCause()
    return f"{cause.getClass().getSimpleName()}: {cause.getMessage()}"
