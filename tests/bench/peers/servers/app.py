"""The plain FastAPI script: one text a run, in a thread, no batching. What runs the model is the caller's."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import anyio.to_thread
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from tests.bench.peers.servers.engine import Engine
from tests.bench.peers.servers.options import Options, to_json


class ClassifyRequest(BaseModel):
    """As ours has it."""

    text: str


def make_app(engine: Engine, options: Options) -> FastAPI:
    """The whole server."""

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = options.instances
        yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/v1/classify")  # type: ignore[untyped-decorator]  # no types where it is not installed
    def classify(request: ClassifyRequest) -> dict[str, Any]:
        return to_json(engine.classify([request.text])[0])

    return app


def serve(engine: Engine, options: Options) -> None:
    """Serve until SIGTERM or SIGINT."""
    uvicorn.run(make_app(engine, options), host="127.0.0.1", port=options.port, access_log=False, log_level="warning")
