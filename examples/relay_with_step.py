"""A relay with a step: publishes only paid orders, copies large ones to a second destination, removes card numbers.

To use the same step from the command line: penstock relay --to file:///var/events --step relay_with_step:only_paid
"""

import sys
import tempfile
from collections import Counter
from pathlib import Path

from pyspark.sql import DataFrame, functions

import penstock
from penstock.pipeline import Dropped, RelayOptions, run_relay

ORDER = "customer STRING, amount INT, paid BOOLEAN"
CARD = "4111 1111 1111 1111"


def only_paid(events: DataFrame) -> DataFrame:
    """Return the paid orders with a new payload: a step may drop rows and change published fields."""
    order = functions.from_json(functions.col("payload").cast("string"), ORDER)
    paid = events.withColumn("order", order).where("order.paid")
    return paid.withColumn("payload", functions.to_json(functions.struct("order.customer", "order.amount")))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{folder}/shop.db"
        with penstock.connect(store) as outbox:
            outbox.store.initialise()
            outbox.emit_many([outbox.event("order.placed", order(number)) for number in range(300)])
            relay(store, folder)
            show(outbox, Path(folder))


def order(number: int) -> dict[str, object]:
    return {"customer": f"c{number % 3}", "amount": number, "paid": number % 2 == 0, "card": CARD}


def relay(store: str, folder: str) -> None:
    def routed(events: DataFrame) -> dict[str, DataFrame]:
        paid = only_paid(events)
        return {f"file://{folder}/all": paid, f"file://{folder}/large": paid.where("order.amount >= 200")}

    options = RelayOptions(store=store, destination="null:", once=True, step=routed, dropped=Dropped.DISCARD)
    report = run_relay(options)
    sys.stdout.write(f"claimed {report.claimed}, published {report.published}, discarded {report.discarded}\n")


def show(outbox: penstock.Outbox, folder: Path) -> None:
    for name in ("all", "large"):
        text = "".join(file.read_text() for file in (folder / name).glob("*.jsonl"))
        sys.stdout.write(f"{name}: {len(text.splitlines())} orders, {text.count(CARD)} cards\n")
    found = outbox.store.find(penstock.Selection(everything=True), limit=1_000)
    sys.stdout.write(f"{dict(Counter(record.state.value for record in found.records))}\n")


if __name__ == "__main__":
    main()


# Output:
# claimed 300, published 150, discarded 150
# all: 150 orders, 0 cards
# large: 50 orders, 0 cards
# {'PUBLISHED': 300}
