"""A worker beside a shop: an order is written with its event, and two handlers process it.

    python examples/worker.py

In production, run the worker in separate processes: `penstock worker examples.worker:worker --processes 2`.
"""

import sys
import threading
from pathlib import Path
from tempfile import mkdtemp

from pydantic import BaseModel
from sqlalchemy import text

import penstock
from penstock import Received, RetryPolicy, Worker

URL = f"sqlite:///{Path(sys.argv[1] if len(sys.argv) > 1 else mkdtemp()) / 'shop.db'}"
worker = Worker(URL)
all_done = threading.Event()


class Order(BaseModel):
    number: int
    amount: int


@worker.handler("orders")
def count_turnover(order: Order, event: Received) -> None:
    """Update the turnover. The update and the settlement of the event commit together, so no order counts twice."""
    with event.transaction() as connection:
        connection.execute(text("UPDATE turnover SET total = total + :amount"), {"amount": order.amount})
        mail = {"order": order.number}
        worker.outbox.emit("mail.due", mail, queue="mails", ordering_key="shop", connection=connection)


@worker.handler("mails", retry=RetryPolicy.constant(0.1))
async def send_mail(event: Received) -> None:
    """Send a mail. The simulated mail server is busy at first, so the event is retried."""
    if event.attempts == 0:
        raise ConnectionError("the mail server is busy")
    print(f"mail for order {event.json()['order']} sent at attempt {event.attempts + 1}")
    if event.json()["order"] == 3:
        all_done.set()


def main() -> None:
    with penstock.connect(URL) as outbox:
        outbox.store.initialise()
        with outbox.store.transaction() as connection:
            connection.execute(text("CREATE TABLE turnover (total INTEGER)"))
            connection.execute(text("INSERT INTO turnover VALUES (0)"))
            for number, amount in enumerate((10, 20, 30), 1):
                order = {"number": number, "amount": amount}
                outbox.emit("order.placed", order, queue="orders", ordering_key="shop", connection=connection)
        worker.start()
        all_done.wait(30)
        worker.stop()
        with outbox.store.transaction() as connection:
            print("turnover:", connection.execute(text("SELECT total FROM turnover")).scalar_one())


if __name__ == "__main__":
    main()


# Output:
# mail for order 1 sent at attempt 2
# mail for order 2 sent at attempt 2
# mail for order 3 sent at attempt 2
# turnover: 60
