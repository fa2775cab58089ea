"""`stdout:` and `null:`."""

import json
import os
import subprocess
import sys

import pytest

from penstock.model.errors import PublishError
from penstock.publish.registry import open_publisher
from penstock.testing.events import delivery
from penstock.testing.publishers import PublisherConformance, PublisherOutcomes, messages


class TestNull(PublisherOutcomes):
    @pytest.fixture
    def publisher(self):
        return open_publisher("null:")


class TestConsole(PublisherConformance):
    @pytest.fixture
    def publisher(self):
        return open_publisher("stdout:")

    @pytest.fixture
    def read_back(self, capsys, as_received):
        printed = []

        def read(topic):
            printed.extend(json.loads(line) for line in capsys.readouterr().out.splitlines())
            return [as_received(fields) for fields in printed if fields["topic"] == topic]

        return read


def test_closed_pipe_is_named_in_error(monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    broken = os.fdopen(writer, "w")
    monkeypatch.setattr(sys, "stdout", broken)
    with pytest.raises(PublishError, match="Broken pipe"):
        open_publisher("stdout:").publish(messages([delivery()]))
    with pytest.raises(BrokenPipeError):
        broken.close()


def test_lines_are_flushed_before_outcomes():
    program = """
import os
from penstock.publish.registry import open_publisher
from penstock.testing.events import delivery
from penstock.testing.publishers import messages
open_publisher("stdout:").publish(messages([delivery(event_type="seen")]))
os._exit(0)  # no flush on the way out
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["event_type"] == "seen"
