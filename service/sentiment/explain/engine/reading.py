"""Tokenizes the text to explain exactly as the classifier does, and adds words and unread ranges."""

from sentiment.errors import InvalidInput
from sentiment.explain.parts import ExplanationRequest
from sentiment.model.classifier import Classifier
from sentiment.model.effort import may_end_early
from sentiment.model.long_texts import READ_ON
from sentiment.model.tokenizer import Row
from sentiment.model.words import Encoded

TRUNCATIONS = ("refuse", "head", "head_tail")


def read(classifier: Classifier, request: ExplanationRequest) -> Encoded:
    """Tokenize a text or pair.

    Raises:
        InvalidInput: the text has no token, or is too long and the truncation does not allow cutting it.
    """
    if request.truncation not in (None, *TRUNCATIONS, "windows"):
        raise InvalidInput("truncation", f"is {request.truncation[:64]!r}; it must be one of {', '.join(TRUNCATIONS)}")
    tokenizer = classifier.tokenizer
    encoded = tokenizer.encode_explained(request.text, request.text_pair)
    if not encoded.words:
        raise InvalidInput("text", f"has {len(request.text)} characters, and the model reads none of them; it needs at least one")
    if not encoded.truncated:
        return encoded
    truncation = request.truncation or classifier.manifest.default_truncation
    if truncation == "refuse":
        limit = f"the limit is {tokenizer.max_tokens} and truncation is refuse"
        raise InvalidInput("text", f"has more tokens than the model reads; {limit}")
    if request.text_pair is not None and request.truncation in READ_ON:
        limit = f"the limit is {tokenizer.max_tokens} and truncation {request.truncation} is for single texts"
        raise InvalidInput("text", f"has more tokens than the model reads, together with text_pair; {limit}")
    if request.truncation == "windows":
        reason = f"the text has more tokens than one window ({tokenizer.max_tokens}), and each window has its own answer"
        raise InvalidInput("truncation", f"is windows; {reason}. To explain the text, use {' or '.join(TRUNCATIONS[1:])}")
    if request.text_pair is None and truncation in READ_ON:
        return tokenizer.encode_explained(request.text, head=classifier.head_tail.head)
    return encoded


def part_of(classifier: Classifier, request: ExplanationRequest, row: Row) -> Row | None:
    """What adaptive effort reads first of the text to explain, which is in this row; None: all of it, as of pairs and windows."""
    early = may_end_early(row.truncated, request.truncation, classifier.manifest.default_truncation)
    return classifier.part_of(row) if request.text_pair is None and early else None
