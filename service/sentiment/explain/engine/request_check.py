"""Checks a request for an explanation before anything runs."""

from collections.abc import Sequence

from sentiment.errors import InvalidInput, Unsupported
from sentiment.explain.methods.registry import ERASURE_METHODS, GRADIENT_METHODS, METHODS
from sentiment.explain.parts import ROLLOUTS, AttentionRequest, ExplanationRequest
from sentiment.model.classifier import Classifier
from sentiment.model.session import ExplainSession
from sentiment.model.text_check import TARGET_BYTES_MAX, check_text
from sentiment.model.words import Encoded

STEPS_MAX = 256
# Layers, or heads of a layer, that a request can name: more than any model has.
CHOSEN_MAX = 128


def check_request(request: ExplanationRequest, classifier: Classifier, known: Sequence[str]) -> None:
    """Check everything that depends neither on the text nor on the explain graph. Takes microseconds, whatever was sent.

    Args:
        request: what to explain.
        classifier: gives the answer.
        known: the available methods.

    Raises:
        InvalidInput: names the field.
        Unsupported: the request needs a model that reads pairs, or one that answers targets.
    """
    labels = classifier.manifest.labels
    for field, label in (("label", request.label), ("options.against", request.against)):
        if label is not None and label not in labels:
            raise InvalidInput(field, f"is {label[:64]!r}; the model's labels are {', '.join(labels)}")
    if request.against is not None and request.against == request.label:
        raise InvalidInput("options.against", f"is {request.against!r}, as label is; it must be another label")
    if request.against is not None and request.label_alone:
        raise InvalidInput("options.against", f"is {request.against!r}; with label_alone it must be unset")
    if len(request.methods) > len(known):
        raise InvalidInput("options.methods", f"has {len(request.methods)} entries; the methods are {', '.join(known)}")
    for number, method in enumerate(request.methods):
        if method not in METHODS:
            raise InvalidInput(f"options.methods[{number}]", f"is {method[:64]!r}; the methods are {', '.join(known)}")
    _check_once("options.methods", request.methods)
    if not 0 <= request.steps <= STEPS_MAX:
        raise InvalidInput("options.attribution.steps", f"is {request.steps}; it must be from 0 (the method's default) to {STEPS_MAX}")
    if request.attention is not None:
        _check_attention(request.attention)
    if request.text_pair is not None and not classifier.manifest.pairs:
        raise Unsupported(f"model {classifier.bundle.id} reads one text; a pair was given")
    if request.target is not None:
        _check_target(request.target, request, classifier)


def check_graph(request: ExplanationRequest, bundle: str, session: ExplainSession | None, failure: str) -> None:
    """Check that the explain graph has what a request needs.

    Args:
        request: what to explain; ``check_request`` has passed it.
        bundle: its id.
        session: session of the explain graph; None without one, or if it failed its check.
        failure: why the explain graph failed its check; empty if it did not.

    Raises:
        InvalidInput: names the field.
        Unsupported: there is no explain graph, or it has no hidden states.
    """
    if session is None:
        none = f"bundle {bundle} has none, and is explained by erasing words: {', '.join(ERASURE_METHODS)}"
        check_without_graph(request, f"that of bundle {bundle} failed its check, see the server's log" if failure else none)
        return
    layers, heads = (request.attention.layers, request.attention.heads) if request.attention is not None else ((), ())
    for name, chosen, count in (("layers", layers, session.layers), ("heads", heads, session.heads)):
        for number, index in enumerate(chosen):
            _check_index(f"options.attention.{name}[{number}]", index, count, name)
    if request.neuron is not None:
        _check_index("options.neuron.layer", request.neuron.layer, session.layers, "layers")
        _check_index("options.neuron.head", request.neuron.head, session.heads, "heads")
    if request.geometry and not session.hidden:
        raise Unsupported(
            f"geometry needs an explain graph with hidden states; that of bundle {bundle} has none; export it again with 0.2.0 or later"
        )


def check_encoded(request: ExplanationRequest, encoded: Encoded) -> None:
    """Check that the text has the token of the neuron view, and the words of each set.

    Raises:
        InvalidInput: names the field.
    """
    if request.neuron is not None:
        _check_index("options.neuron.token", request.neuron.token, len(encoded.tokens), "tokens")
    count = len(encoded.words)
    for number, words in enumerate(request.without):
        field = f"options.without[{number}].words"
        if not 0 < len(words) <= count:
            raise InvalidInput(field, f"has {len(words)} entries; it must have from 1 to {count} (the words that the model reads)")
        for place, word in enumerate(words):
            _check_index(f"{field}[{place}]", word, count, "words")
        _check_once(field, words)


def _check_target(target: str, request: ExplanationRequest, classifier: Classifier) -> None:
    check_text(target, "target", TARGET_BYTES_MAX)
    if request.text_pair is not None:
        raise InvalidInput("target", "is given with text_pair; the answer towards a target is that of one text")
    if classifier.manifest.targets is None:
        raise Unsupported(f"model {classifier.bundle.id} answers no targets; one was given")


def check_without_graph(request: ExplanationRequest, reason: str) -> None:
    """Check that a request needs no explain graph. ``reason``: why there is none.

    Raises:
        Unsupported: it does. Names what needs it, and the reason.
    """
    needing = [method for method in request.methods if method in GRADIENT_METHODS]
    parts = (
        ("attention", request.attention is not None),
        ("neuron", request.neuron is not None),
        ("heads", request.heads),
        ("geometry", request.geometry),
    )
    needing += [name for name, requested in parts if requested]
    if needing:
        verb = "needs" if len(needing) == 1 else "need"
        raise Unsupported(f"{', '.join(needing)} {verb} an explain graph; {reason}")


def _check_attention(request: AttentionRequest) -> None:
    if not 0 < request.top_p <= 1:
        raise InvalidInput("options.attention.top_p", f"is {request.top_p:.6g}; it must be above 0 and at most 1")
    for name, chosen in (("layers", request.layers), ("heads", request.heads)):
        if len(chosen) > CHOSEN_MAX:
            raise InvalidInput(f"options.attention.{name}", f"has {len(chosen)} entries; the limit is {CHOSEN_MAX}")
        _check_once(f"options.attention.{name}", chosen)
    if request.layers and request.aggregation in ROLLOUTS:
        raise InvalidInput(
            "options.attention.layers", f"has {len(request.layers)} entries; it must be empty for a rollout, which uses all layers"
        )


def _check_index(field: str, value: int, count: int, what: str) -> None:
    if not 0 <= value < count:
        raise InvalidInput(field, f"is {value}; the {what} are 0 to {count - 1}")


def _check_once(field: str, values: Sequence[str | int]) -> None:
    for number, value in enumerate(values):
        first = values.index(value)
        if first < number:
            raise InvalidInput(f"{field}[{number}]", f"is {value}, the same as {field.rpartition('.')[2]}[{first}]; name each once")
