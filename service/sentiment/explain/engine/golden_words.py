"""The words of a bundle's golden texts in each layer of its explain graph, computed once: what the geometry of a text is drawn among."""

import unicodedata
from collections.abc import Callable, Sequence
from threading import Lock

import numpy as np
import numpy.typing as npt

from sentiment.explain.methods.geometry import Plane, plane_of, word_states
from sentiment.model.classifier import Classifier
from sentiment.model.words import Encoded, Word

# They are sent with each layer, in one message.
WORDS_MAX = 500
SPELLED_MAX = 40

Floats = npt.NDArray[np.float32]
# Runs a text through the explain graph: its hidden states [tokens, width] of the embeddings and each layer; None if there is no time left.
Run = Callable[[Encoded], Sequence[Floats] | None]


class GoldenWords:
    """The first WORDS_MAX words of the golden texts that are not punctuation alone. Safe to use from several threads."""

    def __init__(self, classifier: Classifier) -> None:
        """Read the golden texts; nothing runs."""
        self._texts: list[tuple[Encoded, list[Word]]] = []
        # As written, cut to SPELLED_MAX code points.
        self.spellings: list[str] = []
        for golden in classifier.manifest.golden:
            encoded = classifier.tokenizer.encode_explained(golden.text, golden.text_pair)
            texts = (golden.text, golden.text_pair or "")
            named = [(word, texts[word.pair][word.start : word.end]) for word in encoded.words]
            kept = [(word, name) for word, name in named if _is_spelled(name)][: WORDS_MAX - len(self.spellings)]
            if kept:
                self._texts.append((encoded, [word for word, _ in kept]))
                self.spellings += [name[:SPELLED_MAX] for _, name in kept]
        # Of each text that has run, by layer.
        self._states: list[list[Floats]] = []
        self._planes: tuple[Plane, ...] = ()
        self._adding = Lock()

    @property
    def progress(self) -> tuple[int, int]:
        """How many golden texts have run, and how many there are."""
        return len(self._states), len(self._texts)

    def planes(self, run: Run) -> tuple[Plane, ...] | None:
        """The plane of the embeddings and of each layer. Texts that have run before do not run again.

        None if there was no time for all; the next call goes on.
        """
        while (number := len(self._states)) < len(self._texts):
            encoded, words = self._texts[number]
            # The lock is not held here: ``run`` may let another explanation go on, which may call ``planes`` too.
            hidden = run(encoded)
            if hidden is None:
                return None
            states = [word_states(layer, words) for layer in hidden]
            with self._adding:
                if len(self._states) == number:
                    self._states.append(states)
        with self._adding:
            if not self._planes:
                planes: list[Plane] = []
                for layer in zip(*self._states, strict=True):
                    planes.append(plane_of(np.concatenate(layer), planes[-1] if planes else None))
                self._planes = tuple(planes)
            return self._planes


def hidden_states(layers: int) -> Sequence[str]:
    """The explain graph's outputs for the embeddings and each layer."""
    return [f"hidden.{layer}" for layer in range(layers + 1)]


def _is_spelled(word: str) -> bool:
    return not all(unicodedata.category(sign).startswith("P") for sign in word)
