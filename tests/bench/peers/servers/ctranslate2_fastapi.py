"""CTranslate2 behind the plain FastAPI script: see ``fastapi`` and ``ctranslate2``, which say how each is tuned."""

from tests.bench.peers.servers.app import serve
from tests.bench.peers.servers.ctranslate2 import CTranslate2
from tests.bench.peers.servers.options import Options

if __name__ == "__main__":
    options = Options.read()
    serve(CTranslate2(options), options)
