"""A receiver of webhooks that verifies signatures and handles each event once, with FastAPI and SQLite.

pip install 'penstock[spark,http]' fastapi uvicorn
export WEBHOOK_SECRET=whsec_$(openssl rand -base64 32)
uvicorn webhook_receiver:app               # in another terminal, with the same secret:
penstock emit order.placed '{"order": 1}'
penstock relay --to 'http://localhost:8000/events?secret_env=WEBHOOK_SECRET' --once
sqlite3 received.db 'SELECT event_type, body FROM received'
"""

import os
import sqlite3
from collections.abc import Iterator
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Request

from penstock.model.errors import InvalidSignature
from penstock.publish.http.signature import verify

app = FastAPI()


def database() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(os.environ.get("RECEIVER_DATABASE", "received.db"), check_same_thread=False)
    connection.execute("CREATE TABLE IF NOT EXISTS received (event_id TEXT PRIMARY KEY, event_type TEXT, body BLOB)")
    try:
        yield connection
    finally:
        connection.close()


@app.post("/events", status_code=204)
async def take(request: Request, connection: Annotated[sqlite3.Connection, Depends(database)]) -> None:
    body = await request.body()
    try:
        # Equals the header Idempotency-Key, but is covered by the signature.
        event_id = verify(request.headers, body, os.environ["WEBHOOK_SECRET"])
    except InvalidSignature as error:
        raise HTTPException(401, str(error)) from error
    with connection:
        # Apply the event's effects in this transaction. For a repeated event the statement inserts nothing.
        connection.execute(
            "INSERT INTO received VALUES (?, ?, ?) ON CONFLICT DO NOTHING", (event_id, request.headers["ce-type"], body)
        )


# Output:
# order.placed|{"order": 1}
