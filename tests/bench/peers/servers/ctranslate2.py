"""CTranslate2 in process, int8, a batch a core at a time: the engine that a performance-minded user would take for a BERT on CPUs.

Tuned as documented: weights quantized to int8 by its own converter (opennmt.net/CTranslate2/quantization.html), a replica with one
thread for each core, which gives the most throughput (opennmt.net/CTranslate2/parallel.html). It computes no padding. Its encoder
ends at the pooler; the classifier's layer stands here.
"""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import ctranslate2
import numpy as np
import tokenizers

from tests.bench.peers.servers.engine import Engine
from tests.bench.peers.servers.lines import serve
from tests.bench.peers.servers.options import Options
from tests.bench.peers.servers.weights import read_weights, write_checkpoint


class CTranslate2(Engine):
    """The bundle's weights in CTranslate2's int8."""

    def __init__(self, options: Options) -> None:
        super().__init__(options.bundle)
        self._tokenizer.no_padding()
        with tempfile.TemporaryDirectory() as parent:
            source, folder = Path(parent) / "source", f"{parent}/model"
            self._copy(source)
            # In a process of its own: torch, which reads the weights, does not stay in memory.
            converter = Path(sys.executable).with_name("ct2-transformers-converter")
            subprocess.run([str(converter), "--model", str(source), "--output_dir", folder, "--quantization", "int8"], check=True)
            self._encoder = ctranslate2.Encoder(folder, device="cpu", compute_type="int8", inter_threads=options.instances, intra_threads=1)
        weights = read_weights(self.folder)
        self._weight, self._bias = weights["classifier.weight"], weights["classifier.bias"]

    def _copy(self, folder: Path) -> None:
        """What the converter reads. It wants a word for each row of the embeddings; the bundle's tokenizer has several for some."""
        write_checkpoint(self.folder, folder)
        words = {number: word for word, number in sorted(self._tokenizer.get_vocab().items(), reverse=True)}
        (folder / "vocab.txt").write_text("".join(f"{words[number]}\n" for number in sorted(words)))

    def logits(self, rows: Sequence[tokenizers.Encoding]) -> list[list[float]]:
        """In one forward pass."""
        pooled = np.array(self._encoder.forward_batch([row.ids for row in rows]).pooler_output)
        values: list[list[float]] = (pooled @ self._weight.T + self._bias).tolist()
        return values


if __name__ == "__main__":
    options = Options.read()
    serve(lambda: CTranslate2(options), options.instances)
