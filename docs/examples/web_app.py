"""A FastAPI app that asks the service: one client, deadlines passed on, failures as HTTP statuses. Run: uvicorn web_app:app --port 8000"""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import FastAPI, Header, Request
from fastapi.responses import JSONResponse
from grpc import StatusCode as Code
from pydantic import BaseModel

from sentiment.client import AsyncClient, CallFailed

HTTP_STATUSES = {Code.INVALID_ARGUMENT: 422, Code.RESOURCE_EXHAUSTED: 429, Code.UNAVAILABLE: 503, Code.DEADLINE_EXCEEDED: 504}


class Review(BaseModel):
    """What a caller sends."""

    text: str


class Opinion(BaseModel):
    """What the caller gets. ``undecided``: do not rely on the label."""

    label: str
    score: float
    undecided: bool


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Share one client among all requests: it keeps one connection per server, and makes it in the event loop of the app."""
    async with AsyncClient() as client:
        app.state.sentiment = client
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/reviews")
async def classify(review: Review, request: Request, x_timeout_s: Annotated[float, Header(gt=0, le=60)] = 2.0) -> Opinion:
    """Classify a review. The service drops it unread once the time that the caller gives in X-Timeout-S is over."""
    answer = await request.app.state.sentiment.classify(review.text, timeout_s=x_timeout_s)
    return Opinion(label=answer.label, score=answer.score, undecided=answer.abstain)


@app.exception_handler(CallFailed)
async def failed(_: Request, error: CallFailed) -> JSONResponse:
    """Say why there is no answer, and when to come back."""
    headers = {} if error.retry_after_s is None else {"Retry-After": str(max(1, math.ceil(error.retry_after_s)))}
    return JSONResponse({"detail": error.message}, HTTP_STATUSES.get(error.code, 502), headers)
