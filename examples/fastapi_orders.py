"""A web shop that commits each order and its event in one transaction, with FastAPI, SQLAlchemy, SQLite or PostgreSQL.

The program `fastapi_async.py` does the same with async endpoints.

pip install 'penstock[postgres]' fastapi uvicorn
uvicorn fastapi_orders:app                 # the store: PENSTOCK_STORE, or sqlite:///penstock.db
curl -X POST localhost:8000/orders -H 'content-type: application/json' -d '{"customer": "ada", "amount": 42}'
curl -X POST localhost:8000/orders -H 'content-type: application/json' -d '{"customer": "bob", "amount": 5000}'
penstock relay --to file:///tmp/events --once
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException
from pydantic import BaseModel
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import penstock
from penstock.config.urls import store_url


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    amount: Mapped[int]


class NewOrder(BaseModel):
    customer: str
    amount: int


url = store_url()
engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://", 1))
outbox = penstock.connect(url)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    outbox.store.initialise()
    Base.metadata.create_all(engine)
    yield
    outbox.close()
    engine.dispose()


app = FastAPI(lifespan=lifespan)


def transaction() -> Iterator[Session]:
    """Provide one transaction per request: commit when the endpoint returns, roll back when it raises."""
    with Session(engine) as session, session.begin():
        yield session


@app.post("/orders", status_code=201)
def place_order(order: NewOrder, session: Annotated[Session, Depends(transaction, scope="function")]) -> dict[str, str]:
    row = Order(customer=order.customer, amount=order.amount)
    session.add(row)
    session.flush()
    event_id = outbox.emit(
        "order.placed",
        {"order": row.id, "amount": row.amount},
        ordering_key=f"customer/{row.customer}",
        connection=session,
    )
    if order.amount > 1_000:
        raise HTTPException(422, "over the limit: neither the order nor its event exists")
    return {"order": str(row.id), "event": str(event_id)}


# Output:
# {"order":"1","event":"01a1f699-42cf-70f2-a0ff-6c3b80b00010"}
# {"detail":"over the limit: neither the order nor its event exists"}
