"""Emitting in the caller's transaction, with SQLAlchemy and with sqlite3: a rollback also removes the event."""

import sqlite3
import sys
import tempfile
from pathlib import Path

from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

import penstock


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shop.db"
        with penstock.connect(f"sqlite:///{path}") as outbox:
            outbox.store.initialise()
            with_sqlalchemy(outbox, f"sqlite:///{path}")
            with_sqlite3(outbox, path)
            outbox.emit("shop.opened", "without a connection, emit commits by itself")
            show(outbox)


def with_sqlalchemy(outbox: penstock.Outbox, url: str) -> None:
    engine = create_engine(url)
    with Session(engine) as session, session.begin():
        session.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY, amount INTEGER)"))
        session.execute(text("INSERT INTO orders (amount) VALUES (42)"))
        outbox.emit("order.placed", {"order": 1, "amount": 42}, connection=session)
    engine.dispose()


def with_sqlite3(outbox: penstock.Outbox, path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("INSERT INTO orders (amount) VALUES (7)")
    outbox.emit("order.placed", {"order": 2, "amount": 7}, connection=connection)
    connection.rollback()  # neither order 2 nor its event exists
    connection.close()


def show(outbox: penstock.Outbox) -> None:
    page = outbox.store.find(penstock.Selection(everything=True))
    for record in reversed(page.records):
        sys.stdout.write(f"{record.event_type:13} {record.state:9} {record.payload.decode()}\n")


if __name__ == "__main__":
    main()


# Output:
# order.placed  PENDING   {"order":1,"amount":42}
# shop.opened   PENDING   without a connection, emit commits by itself
