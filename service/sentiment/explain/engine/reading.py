"""What is read of the text that shall be explained: as the classifier reads it, with words and what was not read."""

from sentiment.errors import InvalidInput
from sentiment.explain.parts import Asked
from sentiment.model.classifier import READ_ON, Classifier
from sentiment.model.words import Encoded

TRUNCATIONS = ("refuse", "head", "head_tail")


def read(classifier: Classifier, asked: Asked) -> Encoded:
    """Tokenize a text or pair.

    Raises:
        InvalidInput: it does not fit and may not be cut so, or has no token.
    """
    if asked.truncation not in (None, *TRUNCATIONS, "windows"):
        raise InvalidInput("truncation", f"is {asked.truncation[:64]!r}; known are {', '.join(TRUNCATIONS)}")
    tokenizer = classifier.tokenizer
    encoded = tokenizer.encode_explained(asked.text, asked.text_pair)
    if not encoded.words:
        raise InvalidInput("text", f"has {len(asked.text)} characters and none that the model reads; at least one is needed")
    if not encoded.truncated:
        return encoded
    truncation = asked.truncation or classifier.manifest.default_truncation
    if truncation == "refuse":
        limit = f"the limit is {tokenizer.max_tokens} and truncation is refuse"
        raise InvalidInput("text", f"has more tokens than the model reads; {limit}")
    if asked.text_pair is not None and asked.truncation in READ_ON:
        limit = f"the limit is {tokenizer.max_tokens} and truncation {asked.truncation} is for single texts"
        raise InvalidInput("text", f"has with its pair more tokens than the model reads; {limit}")
    if asked.truncation == "windows":
        limit = f"the text has more than the {tokenizer.max_tokens} tokens that one has"
        raise InvalidInput("truncation", f"is windows, which have an answer each, and {limit}; explained are {', '.join(TRUNCATIONS[1:])}")
    if asked.text_pair is None and truncation in READ_ON:
        return tokenizer.encode_explained(asked.text, head=classifier.head_tail.head)
    return encoded
