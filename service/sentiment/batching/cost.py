"""What a batch will cost. Pure: times come in as numbers."""

# One batch moves the estimate by a tenth, so that a single slow run (a throttled core, a page fault) does not mislead it.
_WEIGHT = 0.1


class Cost:
    """Predicted run time, proportional to padded tokens and learned from the batches that ran.

    Proportionality holds within about a quarter for one model on a CPU between 16 and 256 tokens; attention's square term is
    what it leaves out.
    """

    def __init__(self, token_s: float = 1e-4) -> None:
        """Start from ``token_s`` seconds a padded token until the first batch has run."""
        self._token_s = token_s
        self._seen = False

    def predict_s(self, tokens: int) -> float:
        """Seconds that one runner needs for ``tokens`` padded tokens."""
        return self._token_s * tokens

    def observe(self, tokens: int, run_s: float) -> None:
        """Learn from a batch of ``tokens`` padded tokens that ran for ``run_s`` seconds."""
        found = run_s / max(1, tokens)
        self._token_s = found if not self._seen else (1 - _WEIGHT) * self._token_s + _WEIGHT * found
        self._seen = True
