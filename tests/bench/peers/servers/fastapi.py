"""The script that many write first: FastAPI on uvicorn, one text a run, no batching.

Tuned as documented: the endpoint is plain ``def``, so that it runs in a thread and not in the event loop
(fastapi.tiangolo.com/async); the pool has as many threads as there are cores instead of 40 (starlette.io/threadpool);
uvicorn with uvloop and httptools, no access log (uvicorn.dev/settings). A process a core
(fastapi.tiangolo.com/deployment/server-workers) and the pool of 40 threads measured no better on two cores.
"""

from tests.bench.peers.servers.app import serve
from tests.bench.peers.servers.classifier import Classifier
from tests.bench.peers.servers.options import Options

if __name__ == "__main__":
    options = Options.read()
    serve(Classifier(options.bundle), options)
