"""The attribution methods: their names, what they need and what is said of them. The viewer's methods.js is made of it: ``make reference``.

The texts are those of the viewer. Pure.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Method:
    """One method.

    ``by_gradient``: it needs an explain graph; other methods erase words. ``steps``: how many of its ``unit`` it takes unless asked
    otherwise; without a unit there is nothing to choose. ``unrelated``: the method whose order of words its own is compared with; empty:
    that would take too long. ``term`` and ``meaning``: in the list of terms. ``sum_note``: what its values sum to. ``split_note``: where
    values split by embedding lie; empty if it does not split them.
    """

    name: str
    by_gradient: bool
    unrelated: str
    term: str
    meaning: str
    sum_note: str
    split_note: str = ""
    unit: str = ""
    steps: int = 1


# By name, in the service's order. The first that a bundle offers is its default, unless a study chose another.
REGISTRY = {
    method.name: method
    for method in (
        Method(
            "integrated_gradients",
            by_gradient=True,
            unrelated="occlusion",
            term="integrated gradients",
            meaning="The gradient at each token, summed on the way from a text of padding to this text.",
            sum_note="The values sum to the logit of this text less that of a text of padding, but for the residual.",
            split_note="All of it lies on the token embedding: this method starts from a text of padding, which has the same segments and "
            "positions.",
            unit="steps",
            steps=16,
        ),
        Method(
            "gradient_x_input",
            by_gradient=True,
            unrelated="occlusion",
            term="gradient x input",
            meaning="The gradient at each token times its embedding: fast and rough.",
            sum_note="These values sum to nothing in particular.",
            split_note="A LayerNorm follows the sum of the three, so at each token they make 0 together: what one adds, the others take. "
            "The value shown in the text view is that of the token embedding alone.",
        ),
        Method(
            "occlusion",
            by_gradient=False,
            unrelated="integrated_gradients",
            term="occlusion",
            meaning="What the logit loses when one word alone is left out.",
            sum_note="These values sum to nothing in particular: words share what they do.",
        ),
        Method(
            "shapley",
            by_gradient=False,
            unrelated="integrated_gradients",
            term="Shapley value",
            meaning="What a word changes on average when the words are put in one by one, in random orders.",
            sum_note="The values sum to the logit of this text less that without any word, but for the residual.",
            unit="orders",
            steps=20,
        ),
        Method(
            "two_step_shapley",
            by_gradient=False,
            unrelated="",
            term="two-step Shapley",
            meaning="Shapley values of whole sentences, each shared among its words: the default of long texts.",
            sum_note="The values sum to the logit of this text less that without any word: first sentences share it, then their words.",
            unit="rows",
            # More change the order of the sentences little: docs/internals/explanation-study.md, "Longer texts".
            steps=32,
        ),
    )
}
METHODS = tuple(REGISTRY)
GRADIENT_METHODS = tuple(name for name, method in REGISTRY.items() if method.by_gradient)
ERASURE_METHODS = tuple(name for name, method in REGISTRY.items() if not method.by_gradient)
# It moves the answer at least as much as integrated gradients, in less time: docs/internals/explanation-study.md, "Longer texts".
METHOD_OF_LONG_TEXTS = "two_step_shapley"
