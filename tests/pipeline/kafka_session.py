"""Run a stream over a topic in a separate process. With `before`, a session without the connector is opened first.

python kafka_session.py STORE STATE SERVERS TOPIC [before]
"""

import sys

from stream_env import remember

from penstock import Streams
from penstock.model.errors import UsageError
from penstock.pipeline.spark.session import open_session
from penstock.streams.sources import Kafka

if __name__ == "__main__":
    store, state, servers, topic, *before = sys.argv[1:]
    app = Streams(store, state=state)
    app.stream(Kafka(servers, topic), name="shop", parts=1)(remember)
    if before:
        open_session("local[2]")
    try:
        app.run(master="local[2]", once=True)
    except UsageError as error:
        sys.exit(f"UsageError: {error}")
