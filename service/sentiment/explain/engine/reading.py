"""Tokenizes the text to explain exactly as the classifier does, and adds words and unread ranges."""

from sentiment.errors import InvalidInput
from sentiment.explain.parts import ExplanationRequest
from sentiment.model.classifier import Classifier
from sentiment.model.effort import may_end_early
from sentiment.model.long_texts import READ_ON
from sentiment.model.mentions import Mentions
from sentiment.model.text_check import unreadable
from sentiment.model.tokenizer import Row, Tokenizer
from sentiment.model.words import Encoded

TRUNCATIONS = ("refuse", "head", "head_tail")


def read(classifier: Classifier, request: ExplanationRequest) -> Encoded:
    """Tokenize a text or pair, or what is read of a text for the target.

    Raises:
        InvalidInput: the text has no token, or is too long and the truncation does not allow cutting it; or it does not name the target.
    """
    if request.truncation not in (None, *TRUNCATIONS, "windows"):
        raise InvalidInput("truncation", f"is {request.truncation[:64]!r}; it must be one of {', '.join(TRUNCATIONS)}")
    tokenizer = classifier.tokenizer
    truncation = request.truncation or classifier.manifest.default_truncation
    if request.target is not None:
        return _around(classifier, request.text, request.target, truncation)
    encoded = tokenizer.encode_explained(request.text, request.text_pair)
    if not encoded.words:
        raise unreadable("text", request.text)
    if not encoded.truncated:
        return encoded
    if truncation == "refuse":
        raise _too_long(tokenizer)
    if request.text_pair is not None and request.truncation in READ_ON:
        limit = f"the limit is {tokenizer.max_tokens} and truncation {request.truncation} is for single texts"
        raise InvalidInput("text", f"has more tokens than the model reads, together with text_pair; {limit}")
    if request.truncation == "windows":
        reason = f"the text has more tokens than one window ({tokenizer.max_tokens}), and each window has its own answer"
        raise InvalidInput("truncation", f"is windows; {reason}. To explain the text, use {' or '.join(TRUNCATIONS[1:])}")
    if request.text_pair is None and truncation in READ_ON:
        return tokenizer.encode_explained(request.text, head=classifier.head_tail.head)
    return encoded


def _around(classifier: Classifier, text: str, target: str, truncation: str) -> Encoded:
    """The row that is read for a target, as a query with it reads it."""
    tokenizer, spec = classifier.tokenizer, classifier.manifest.targets
    assert spec is not None, "check_request refuses it"
    whole = tokenizer.encode(text)
    for field, given, row in (("text", text, whole), ("target", target, tokenizer.encode(target))):
        if row.tokens <= tokenizer.special_tokens:
            raise unreadable(field, given)
    if whole.truncated and truncation == "refuse":
        raise _too_long(tokenizer)
    mention = Mentions(text).find(target)
    if mention is None:
        raise InvalidInput("target", "is not named in the text; the answer is then neutral by rule, and nothing in the text explains it")
    encoded = tokenizer.encode_explained_target(text, mention, target, spec.tokens, None if whole.truncated else whole)
    if not encoded.words:
        raise InvalidInput("target", "is all that the model reads of the text; no other word explains the answer")
    return encoded


def _too_long(tokenizer: Tokenizer) -> InvalidInput:
    limit = f"the limit is {tokenizer.max_tokens} and truncation is refuse"
    return InvalidInput("text", f"has more tokens than the model reads; {limit}")


def part_of(classifier: Classifier, request: ExplanationRequest, row: Row) -> Row | None:
    """What adaptive effort reads first of the text to explain, which is in this row; None: all of it, as of pairs and windows."""
    if request.text_pair is not None or request.target is not None:
        return None
    early = may_end_early(row.truncated, request.truncation, classifier.manifest.default_truncation)
    return classifier.part_of(row) if early else None
