"""Run by a Python that has the service: ``reading.py TOKENIZER TEXTS``. Prints a digest of how each text of a JSON list is read."""

import hashlib
import json
import sys
from pathlib import Path

import tokenizers

from sentiment.model.tokenizer import Tokenizer

TOKENS_MAX = 64


def main(file: str, texts: str) -> None:
    tokenizer = Tokenizer(Path(file), TOKENS_MAX)
    # Ids, and the places of tokens and words.
    read = [repr(tokenizer.encode_explained(text)) for text in json.loads(Path(texts).read_text())]
    print(json.dumps([tokenizers.__version__, [hashlib.sha256(one.encode()).hexdigest() for one in read]]))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
