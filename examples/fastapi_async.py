"""A web shop with async endpoints that commits each order and its event in one transaction, on PostgreSQL.

pip install 'penstock[postgres]' 'sqlalchemy[asyncio]' fastapi uvicorn
export PENSTOCK_STORE=postgresql://user:password@localhost/shop    # asyncpg: postgresql+asyncpg://…
uvicorn fastapi_async:app
curl -X POST localhost:8000/orders -H 'content-type: application/json' -d '{"customer": "ada", "amount": 42}'
curl -X POST localhost:8000/orders -H 'content-type: application/json' -d '{"customer": "bob", "amount": 5000}'
penstock relay --to file:///tmp/events --once
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException
from pydantic import BaseModel
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import penstock


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


url = make_url(os.environ["PENSTOCK_STORE"])
engine = create_async_engine(url.set(drivername="postgresql+psycopg") if url.drivername == "postgresql" else url)
outbox = penstock.connect(url.render_as_string(hide_password=False))


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    await asyncio.to_thread(outbox.store.initialise)  # the only use of the outbox's own, blocking connections
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    yield
    outbox.close()
    await engine.dispose()


app = FastAPI(lifespan=lifespan)


async def transaction() -> AsyncIterator[AsyncSession]:
    """Provide one transaction per request: commit when the endpoint returns, roll back when it raises."""
    async with AsyncSession(engine) as session, session.begin():
        yield session


@app.post("/orders", status_code=201)
async def place_order(
    order: NewOrder, session: Annotated[AsyncSession, Depends(transaction, scope="function")]
) -> dict[str, int]:
    row = Order(customer=order.customer, amount=order.amount)
    session.add(row)
    await session.flush()
    event = outbox.event(
        "order.placed", {"order": row.id, "amount": row.amount}, ordering_key=f"customer/{row.customer}"
    )
    await session.execute(outbox.insert(event))  # emits in the session's transaction
    if order.amount > 1_000:
        raise HTTPException(422, "over the limit: neither the order nor its event exists")
    return {"order": row.id}


# Output:
# {"order":1}
# {"detail":"over the limit: neither the order nor its event exists"}
