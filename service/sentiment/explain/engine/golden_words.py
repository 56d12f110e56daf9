"""The words of a bundle's golden texts in each layer of its explain graph, computed once: what the geometry of a text is drawn among."""

import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from sentiment.explain.methods.geometry import Plane, plane_of, word_states
from sentiment.model.classifier import Classifier
from sentiment.model.execute import Execute, here
from sentiment.model.session import ExplainSession, Stop
from sentiment.model.tensors import pad
from sentiment.model.tokenizer import Row
from sentiment.model.words import Encoded, Word

# They are sent with each layer.
WORDS_MAX = 1000


class GoldenWords:
    """The first WORDS_MAX words of the golden texts that are not punctuation. Safe to use from several threads."""

    def __init__(self, classifier: Classifier) -> None:
        """Read the golden texts; nothing runs."""
        self._classifier = classifier
        self._texts: list[tuple[Encoded, list[Word]]] = []
        self.spellings: list[str] = []
        for golden in classifier.manifest.golden:
            encoded = classifier.tokenizer.encode_explained(golden.text, golden.text_pair)
            texts = (golden.text, golden.text_pair or "")
            named = [(word, texts[word.pair][word.start : word.end]) for word in encoded.words]
            kept = [(word, name) for word, name in named if _is_spelled(name)][: WORDS_MAX - len(self.spellings)]
            if kept:
                self._texts.append((encoded, [word for word, _ in kept]))
                self.spellings += [name for _, name in kept]
        self._planes: tuple[Plane, ...] = ()

    @property
    def tokens_left(self) -> int:
        """Tokens that ``planes`` will run: 0 once it has."""
        return 0 if self._planes else sum(len(encoded.tokens) for encoded, _ in self._texts)

    def planes(self, session: ExplainSession, stop: Stop | None = None, execute: Execute = here) -> tuple[Plane, ...]:
        """The plane of the embeddings and of each layer. The first call runs the golden texts through the explain graph, one by one."""
        if not self._planes:
            states = [np.concatenate(layer) for layer in zip(*self._states(session, stop, execute), strict=True)]
            planes: list[Plane] = []
            for layer in states:
                planes.append(plane_of(layer, planes[-1] if planes else None))
            self._planes = tuple(planes)
        return self._planes

    def _states(self, session: ExplainSession, stop: Stop | None, execute: Execute) -> Iterator[list[npt.NDArray[np.float32]]]:
        """For each text, its words' states in each layer."""
        left = self._classifier.manifest.padding_side == "left"
        names = hidden_states(session.layers)
        for encoded, words in self._texts:
            row = Row(encoded.ids, encoded.type_ids, encoded.truncated)
            feeds = pad([row], session.inputs, self._classifier.tokenizer.pad_id, left)
            found = session.run(feeds, names, np.zeros(1, np.int64), stop=stop, execute=execute)
            yield [word_states(found[name][0], words) for name in names]


def hidden_states(layers: int) -> Sequence[str]:
    """The explain graph's outputs for the embeddings and each layer."""
    return [f"hidden.{layer}" for layer in range(layers + 1)]


def _is_spelled(word: str) -> bool:
    return not all(unicodedata.category(sign).startswith("P") for sign in word)
