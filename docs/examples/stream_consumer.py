"""Answers each text of a Redis stream once, in another stream, however often it is killed. Run: python stream_consumer.py NAME

COMMIT acknowledges a text and adds its answer, or does neither. A consumer that starts again under its NAME first gets what it has not
acknowledged. It reads on only when all that it holds is answered, at the pace of the server: texts pile up in Redis and not here.
"""

import asyncio
import json
import os
import sys
from contextlib import suppress

from grpc import StatusCode
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from sentiment.client import AsyncClient, CallFailed

TEXTS, ANSWERS, GROUP = "texts", "answers", "sentiment"
READ_MAX = 256
LATER = {StatusCode.UNAVAILABLE, StatusCode.RESOURCE_EXHAUSTED, StatusCode.DEADLINE_EXCEEDED}
# XACK gives 0 for what is acknowledged already: two consumers of one name do no harm.
COMMIT = """
for i = 2, #ARGV, 2 do
  if redis.call('XACK', KEYS[1], ARGV[1], ARGV[i]) == 1 then
    redis.call('XADD', KEYS[2], '*', 'id', ARGV[i], 'answer', ARGV[i + 1])
  end
end
"""


async def consume(name: str) -> None:
    """Answer texts for ever. A text that can never be answered gets its error; one that the server has no room for is tried again."""
    redis = Redis.from_url(os.environ.get("REDIS_URL", "redis://127.0.0.1:6379"), protocol=2, decode_responses=True)
    client = AsyncClient()
    commit = redis.register_script(COMMIT)
    try:
        await redis.xgroup_create(TEXTS, GROUP, id="0", mkstream=True)
    except ResponseError as error:
        if "BUSYGROUP" not in str(error):  # the group is there already
            raise
    while True:
        entries = await redis.xreadgroup(GROUP, name, {TEXTS: "0"}, READ_MAX)
        if not entries[0][1]:
            entries = await redis.xreadgroup(GROUP, name, {TEXTS: ">"}, READ_MAX, block=1000)
        texts = dict(entries[0][1]) if entries else {}
        done, results = [], []
        with suppress(CallFailed):  # the server is unreachable
            results = await client.classify([fields.get("text") for fields in texts.values()])
        for key, result in zip(texts, results, strict=False):
            if not isinstance(result, CallFailed):
                done += [key, json.dumps({"label": result.label, "score": result.score, "undecided": result.abstain})]
            elif result.code not in LATER:
                done += [key, json.dumps({"error": str(result)})]
        await (commit([TEXTS, ANSWERS], [GROUP, *done]) if done else asyncio.sleep(0.2))


if __name__ == "__main__":
    asyncio.run(consume(sys.argv[1]))
