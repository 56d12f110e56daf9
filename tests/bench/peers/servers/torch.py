"""What transformers and sentence-transformers do in process: torch, fp32, texts sorted by length, batches of 32. No server.

fp32 is what the bundle's weights are read as; 32 is ``encode``'s default (sbert.net, "Speeding up Inference"). One batch at a time
has all cores, which is torch's default.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import tokenizers
import torch
import transformers

from tests.bench.peers.servers.engine import Engine, columns
from tests.bench.peers.servers.lines import serve
from tests.bench.peers.servers.options import Options
from tests.bench.peers.servers.weights import write_checkpoint


class Torch(Engine):
    """The bundle's weights in torch."""

    def __init__(self, options: Options) -> None:
        super().__init__(options.bundle)
        torch.set_num_threads(options.instances)
        with tempfile.TemporaryDirectory() as parent:
            folder = Path(parent) / "checkpoint"
            write_checkpoint(self.folder, folder)
            self._model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()

    def logits(self, rows: Sequence[tokenizers.Encoding]) -> list[list[float]]:
        """In one forward pass."""
        with torch.inference_mode():
            values: list[list[float]] = self._model(**{name: torch.tensor(ids) for name, ids in columns(rows).items()}).logits.tolist()
        return values


if __name__ == "__main__":
    serve(lambda: Torch(Options.read()), batches=1)
