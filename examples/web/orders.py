"""A web application that sends orders, and bills them in the same process.

Run it with ``NAMESRV_ADDR=127.0.0.1:9876 uvicorn --factory orders:create_app``.
"""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel

import ogive


class Order(BaseModel):
    id: str
    amount: int


@ogive.listener("Orders", group="billing", as_=Order)
async def bill(order: Order) -> None:
    print("billed", order.id)


def create_app(name_server: str | None = None) -> FastAPI:
    """Return the application. A test passes the address of its own broker."""
    address = name_server or os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[dict[str, object], None]:
        producer = ogive.aio.Producer(address, serializer=ogive.to_json)
        async with producer, ogive.aio.PushConsumer(bill, name_server=address):
            yield {"producer": producer}

    app = FastAPI(lifespan=lifespan)

    @app.post("/orders")
    async def place_order(order: Order, request: Request) -> dict[str, str]:
        try:
            sent = await request.state.producer.send("Orders", order, keys=order.id)
        except ogive.errors.OgiveError as exc:
            reason = "perhaps stored" if exc.outcome_unknown else "not stored"
            raise HTTPException(503, reason) from exc
        return {"id": sent.id}

    return app
