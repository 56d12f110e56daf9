"""The script that many write first: FastAPI on uvicorn, one text a run, no batching.

Tuned as documented: the endpoint is plain ``def``, so that it runs in a thread and not in the event loop
(fastapi.tiangolo.com/async); the pool has as many threads as there are cores instead of 40 (starlette.io/threadpool);
uvicorn with uvloop and httptools, no access log (uvicorn.dev/settings). A process a core
(fastapi.tiangolo.com/deployment/server-workers) and the pool of 40 threads measured no better on two cores.
"""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import anyio.to_thread
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from tests.bench.peers.servers.classifier import Classifier
from tests.bench.peers.servers.options import Options, to_json


class ClassifyRequest(BaseModel):
    """As ours has it."""

    text: str


def make_app(options: Options) -> FastAPI:
    """The whole server."""
    classifier = Classifier(options.bundle)

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = options.instances
        yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/v1/classify")  # type: ignore[untyped-decorator]  # no types where it is not installed
    def classify(request: ClassifyRequest) -> dict[str, Any]:
        return to_json(classifier.classify([request.text])[0])

    return app


if __name__ == "__main__":
    options = Options.read()
    uvicorn.run(make_app(options), host="127.0.0.1", port=options.port, access_log=False, log_level="warning")
