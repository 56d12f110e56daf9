"""Whether what is asked of an explanation can be given, before anything is run for it."""

from collections.abc import Sequence

from sentiment.errors import InvalidInput, Unsupported
from sentiment.explain.parts import ROLLOUTS, Asked, AttentionAsked, NeuronAsked
from sentiment.model.classifier import Classifier
from sentiment.model.session import ExplainSession
from sentiment.model.words import Encoded

GRADIENT_METHODS = ("integrated_gradients", "gradient_x_input")
ERASURE_METHODS = ("occlusion", "shapley")
METHODS = GRADIENT_METHODS + ERASURE_METHODS
STEPS_MAX = 256


def check_asked(asked: Asked, classifier: Classifier, session: ExplainSession | None, failure: str) -> None:
    """Refuse what there is not.

    Args:
        asked: what shall be explained.
        classifier: whose answer.
        session: of the explain graph, if there is one that is sound.
        failure: why the explain graph that there is, is not.

    Raises:
        InvalidInput: names the field.
        Unsupported: it needs an explain graph, or a model that reads pairs.
    """
    labels = classifier.manifest.labels
    if asked.label is not None and asked.label not in labels:
        raise InvalidInput("label", f"is {asked.label[:64]!r}; the model's labels are {', '.join(labels)}")
    known = METHODS if session is not None else ERASURE_METHODS
    if len(asked.methods) > len(known):
        raise InvalidInput("options.methods", f"has {len(asked.methods)}; known are {', '.join(known)}")
    for number, method in enumerate(asked.methods):
        if method not in METHODS:
            raise InvalidInput(f"options.methods[{number}]", f"is {method[:64]!r}; known are {', '.join(known)}")
    _check_once("options.methods", asked.methods)
    if not 0 <= asked.steps <= STEPS_MAX:
        raise InvalidInput("options.attribution.steps", f"is {asked.steps}; the limits are 0, for the default, and {STEPS_MAX}")
    if asked.attention is not None and not 0 < asked.attention.top_p <= 1:
        raise InvalidInput("options.attention.top_p", f"is {asked.attention.top_p:.6g}; it is above 0 and at most 1")
    if asked.text_pair is not None and not classifier.manifest.pairs:
        raise Unsupported(f"model {classifier.bundle.id} reads one text; a pair was given")
    if session is None:
        _check_without_graph(asked, classifier.bundle.id, failure)
        return
    if asked.attention is not None:
        _check_attention(asked.attention, session)
    if asked.neuron is not None:
        _check_neuron(asked.neuron, session)


def check_token(asked: NeuronAsked, encoded: Encoded) -> None:
    """Refuse a token that the text has not.

    Raises:
        InvalidInput: names the field.
    """
    _check_index("options.neuron.token", asked.token, len(encoded.tokens), "tokens")


def check_sets(sets: Sequence[Sequence[int]], encoded: Encoded) -> None:
    """Refuse sets of words that the text has not.

    Raises:
        InvalidInput: names the field.
    """
    count = len(encoded.words)
    for number, words in enumerate(sets):
        field = f"options.without[{number}].words"
        if not 0 < len(words) <= count:
            raise InvalidInput(field, f"has {len(words)}; the limits are 1 and {count}, the words that are read")
        for place, word in enumerate(words):
            _check_index(f"{field}[{place}]", word, count, "words")
        _check_once(field, words)


def _check_without_graph(asked: Asked, bundle: str, failure: str) -> None:
    wanted = [method for method in asked.methods if method in GRADIENT_METHODS]
    parts = (("attention", asked.attention is not None), ("neuron", asked.neuron is not None), ("heads", asked.heads))
    wanted += [name for name, is_asked in parts if is_asked]
    if wanted:
        reason = f"that of bundle {bundle} is not sound here, the log says why" if failure else f"bundle {bundle} has none"
        verb = "needs" if len(wanted) == 1 else "need"
        raise Unsupported(f"{', '.join(wanted)} {verb} an explain graph; {reason}")


def _check_attention(asked: AttentionAsked, session: ExplainSession) -> None:
    for name, chosen, count in (("layers", asked.layers, session.layers), ("heads", asked.heads, session.heads)):
        if len(chosen) > count:
            raise InvalidInput(f"options.attention.{name}", f"has {len(chosen)}; the model has {count}")
    for number, layer in enumerate(asked.layers):
        _check_index(f"options.attention.layers[{number}]", layer, session.layers, "layers")
    for number, head in enumerate(asked.heads):
        _check_index(f"options.attention.heads[{number}]", head, session.heads, "heads")
    _check_once("options.attention.layers", asked.layers)
    _check_once("options.attention.heads", asked.heads)
    if asked.layers and asked.aggregation in ROLLOUTS:
        raise InvalidInput("options.attention.layers", f"has {len(asked.layers)}; a rollout goes through all layers, so none can be chosen")


def _check_neuron(asked: NeuronAsked, session: ExplainSession) -> None:
    _check_index("options.neuron.layer", asked.layer, session.layers, "layers")
    _check_index("options.neuron.head", asked.head, session.heads, "heads")


def _check_index(field: str, value: int, count: int, what: str) -> None:
    if not 0 <= value < count:
        raise InvalidInput(field, f"is {value}; the {what} are 0 to {count - 1}")


def _check_once(field: str, values: Sequence[str | int]) -> None:
    for number, value in enumerate(values):
        first = values.index(value)
        if first < number:
            raise InvalidInput(f"{field}[{number}]", f"is {value}, as {field.rpartition('.')[2]}[{first}] is")
