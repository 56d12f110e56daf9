"""One explanation, from the request to the summary. The answer itself always comes from the served graph, which may be int8.

Words are erased with the attention mask of the served graph. The explain graph provides gradients, attention and the effects of heads.
"""

import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from threading import Lock

import numpy as np

from sentiment.errors import BadBundle, InvalidInput, Unsupported
from sentiment.explain.budget import Sizes, check_bytes
from sentiment.explain.engine.attributions import Attributions
from sentiment.explain.engine.golden_words import hidden_states
from sentiment.explain.engine.graph_check import ExplainGraph, load_graph
from sentiment.explain.engine.maps import Floats, heads_seen, map_count, map_tiles, maps, neuron, outputs
from sentiment.explain.engine.prediction import Prediction, predict, words_of
from sentiment.explain.engine.reading import part_of, read
from sentiment.explain.engine.request_check import check_encoded, check_graph, check_request, check_without_graph
from sentiment.explain.engine.runs import Arrays, Clock, GraphRuns, Pace, SecondsLeft, Turn, UsualPaces, at_once
from sentiment.explain.methods.counterfactuals import flip, keep
from sentiment.explain.methods.deciding import DecidingWords
from sentiment.explain.methods.erasure import Floats as Values
from sentiment.explain.methods.erasure import without
from sentiment.explain.methods.evidence import Evidence
from sentiment.explain.methods.geometry import locate, word_states
from sentiment.explain.methods.heads import GatePlan, HeadEffects, HeadPatterns, effects_from
from sentiment.explain.methods.registry import ERASURE_METHODS, METHOD_OF_LONG_TEXTS, METHODS
from sentiment.explain.methods.target import Target, compares, target_of
from sentiment.explain.parts import (
    AttentionTile,
    Attribution,
    Counterfactuals,
    ExplanationRequest,
    Header,
    Heads,
    Part,
    Reason,
    Summary,
    Without,
    WordGeometry,
)
from sentiment.explain.reason import reason
from sentiment.model.classifier import Classifier
from sentiment.model.effort import told
from sentiment.model.execute import Execute, here
from sentiment.model.scores import Scored, probabilities
from sentiment.model.session import Providers, Stop
from sentiment.model.words import Encoded

# Attention weights of one text in the explain graph: half a GiB, of which it keeps several copies for the gradients. 512 tokens of a large
# BERT have 100 million.
WEIGHTS_MAX = 2**27


def tokens_most(maps: int) -> int:
    """The most tokens of a text that an explain graph with ``maps`` attention maps may read: an allocation must not end the process."""
    return math.isqrt(WEIGHTS_MAX // max(1, maps))


class Explainer:
    """Explains the answers of one classifier. Safe to use from several threads; each explanation needs its own memory."""

    def __init__(self, classifier: Classifier, clock: Clock = time.perf_counter, providers: Providers = ()) -> None:
        """The explain graph is loaded by the first explanation, or by ``load``.

        Args:
            classifier: gives the answers.
            clock: in seconds, times the runs.
            providers: of the explain graph; empty: the one that the bundle names first.
        """
        self.classifier = classifier
        # Why the bundle's explain graph cannot be used; set when loading fails.
        self.failure = ""
        self._clock = clock
        self._providers = providers
        self._spec = classifier.manifest.graphs.explain
        self._graph: ExplainGraph | None = None
        self._loading = Lock()
        self._usual = UsualPaces()

    @property
    def methods(self) -> tuple[str, ...]:
        """The available methods, the default first. Without a usable explain graph there are no gradient methods.

        The default is the one that the bundle's study names, if it is available.
        """
        known = self._known
        measured = self.classifier.manifest.explanations
        default = measured.default_method if measured is not None else known[0]
        return tuple(sorted(known, key=lambda method: method != default))

    @property
    def _known(self) -> tuple[str, ...]:
        """The methods in the service's own order."""
        return ERASURE_METHODS if self._spec is None or self.failure else METHODS

    def defaults(self, words: int) -> tuple[str, ...]:
        """The methods to try if the request names none, until one fits into the time: the study's default, then the service's first.

        A text with more words than any in the study gets the method for long texts instead of the former: the study says nothing about
        such texts.
        """
        measured = self.classifier.manifest.explanations
        studied = measured is None or words <= measured.words_max
        return tuple(dict.fromkeys((self.methods[0] if studied else METHOD_OF_LONG_TEXTS, self._known[0])))

    def _chosen(self, request: ExplanationRequest, tokens: int, words: int, maps: int) -> tuple[bool, tuple[str, ...]]:
        """Whether a text fits into the explain graph, and the methods to try. ``maps``: the attention maps of the graph, 0 without one."""
        fits = not maps or tokens <= tokens_most(maps)
        return fits, request.methods or (self.defaults(words) if fits else (METHOD_OF_LONG_TEXTS,))

    def _remarks(self, request: ExplanationRequest, first: str, words: int) -> list[str]:
        """Says why a request without methods is not explained by the study's default."""
        measured = self.classifier.manifest.explanations
        chosen = bool(request.methods) or not (request.attributions or request.counterfactuals)
        if chosen or measured is None or words <= measured.words_max or first == self.methods[0]:
            return []
        return [
            f"the method is {first}: {self.methods[0]} was studied on texts of up to {measured.words_max} words, "
            f"and of this text {words} are read"
        ]

    def load(self, execute: Execute = here) -> ExplainGraph | None:
        """Load and check the explain graph, unless that has been done. Other threads wait meanwhile. ``execute`` runs the graph.

        Returns:
            None if the bundle has no explain graph, or if it failed its check (see ``failure``).

        Raises:
            CannotRead, OutOfMemory: its files cannot be read now, or there is not enough memory; the next call tries again.
        """
        with self._loading:
            graph = self._graph
            if graph is None and self._spec is not None and not self.failure:
                try:
                    graph = self._graph = load_graph(self.classifier, self._spec, execute, self._providers)
                except BadBundle as error:
                    self.failure = str(error)
            # Not self._graph: another thread may have unloaded it meanwhile.
            return graph

    def unload(self, for_good: bool = False) -> None:
        """Release the explain graph if its file is readable, so that it can be loaded again, or if ``for_good``. From any thread.

        Explanations in progress keep their reference.
        """
        if for_good or (self._spec is not None and os.access(self.classifier.bundle.path / self._spec.file, os.R_OK)):
            self._graph = None

    def predict(self, request: ExplanationRequest) -> Prediction:
        """Predict what an explanation takes; from any thread.

        The text is tokenized but not read, which would take 40 times as long: a prediction may end with a refusal, which must be cheap.

        Raises:
            InvalidInput, Unsupported: as ``explain``, as far as it shows without the text and the explain graph.
        """
        check_request(request, self.classifier, self._known)
        row, graph = self.classifier.tokenizer.encode(request.text, request.text_pair), self._graph
        tokens, part = row.tokens, part_of(self.classifier, request, row)
        if request.target is not None and self.classifier.manifest.targets is not None:
            tokens = min(tokens, self.classifier.manifest.targets.tokens)
        bundle, usable = self.classifier.bundle, self._spec is not None and not self.failure
        unloaded = (bundle.attention_layers, bundle.attention_heads) if usable else (0, 0)
        layers, heads = unloaded if graph is None else (graph.session.layers, graph.session.heads)
        fits, methods = self._chosen(request, tokens, words_of(tokens), layers * heads)
        if not fits:
            layers, heads = 0, 0
        gradients = 1 + compares(len(self.classifier.manifest.labels), request.against, request.label_alone)
        part_tokens = 0 if part is None else part.tokens
        return predict(replace(request, methods=request.methods or methods[:1]), tokens, layers, heads, self._usual, gradients, part_tokens)

    def explain(
        self,
        request: ExplanationRequest,
        left_s: SecondsLeft = lambda: float("inf"),
        stop: Stop | None = None,
        execute: Execute = here,
        turn: Turn = at_once,
    ) -> Iterator[Part]:
        """Explain one text, part by part: the header first, the summary last.

        Between them: attention tiles, the neuron view, the attribution and evidence of each method (before the first its estimates, after
        it the deciding words and the reason),
        counterfactuals, answers without the requested words, the geometry, and heads.

        Args:
            request: what to explain.
            left_s: returns the seconds that are left; called between runs. Parts that do not fit are shortened or left out, with a note.
            stop: ends the current run when requested; the run's error passes to the caller.
            execute: runs the graphs, maybe in another thread. Everything else happens in the calling thread.
            turn: called before each run but those that load the explain graph; may wait. An error that it raises passes to the caller.

        Raises:
            InvalidInput: names the field. Raised before the header.
            Unsupported: the bundle does not support the request. Raised before the header.
            CannotRead: the explain graph's files cannot be read now.
            OutOfMemory: there is not enough memory for this text.
        """
        begun = self._clock()
        graph = self.load(execute)
        check_request(request, self.classifier, self._known)
        check_graph(request, self.classifier.bundle.id, None if graph is None else graph.session, self.failure)
        if request.geometry and graph is not None and not graph.golden.spellings:
            raise Unsupported(f"geometry needs golden words; the golden texts of bundle {self.classifier.bundle.id} are punctuation alone")
        encoded = read(self.classifier, request)
        check_encoded(request, encoded)
        maps = 0 if graph is None else graph.session.layers * graph.session.heads
        fits, methods = self._chosen(request, len(encoded.tokens), len(encoded.words), maps)
        if not fits:
            most = f"that of bundle {self.classifier.bundle.id} reads {tokens_most(maps)} tokens, this text has {len(encoded.tokens)}"
            check_without_graph(request, most)
            graph = None
        sizes = Sizes() if graph is None else Sizes(graph.session.layers, graph.session.heads, graph.width, graph.golden.spellings)
        check_bytes(replace(request, methods=request.methods or methods[:1]), encoded, self.classifier.manifest.labels, sizes)
        session = None if graph is None else graph.session
        runs = GraphRuns(self.classifier, session, encoded, left_s, stop, self._clock, execute, turn, self._usual)
        work = _Work(self.classifier, graph, request, methods, runs, [], self._remarks(request, methods[0], len(encoded.words)))
        run_s = 0.0
        for part in work.parts():
            run_s += self._clock() - begun
            yield part
            begun = self._clock()
        run_s += self._clock() - begun
        yield Summary(not work.notes, (*work.notes, *work.remarks), runs.served_rows, runs.explained_rows, run_s)


@dataclass(slots=True)
class _Work:
    """One explanation in progress. ``notes``: a sentence per part that was left out or shortened. ``remarks``: one per doubtful result."""

    classifier: Classifier
    graph: ExplainGraph | None
    request: ExplanationRequest
    methods: tuple[str, ...]
    runs: GraphRuns
    notes: list[str]
    remarks: list[str]

    @property
    def encoded(self) -> Encoded:
        return self.runs.encoded

    def parts(self) -> Iterator[Part]:
        """Everything but the summary."""
        logits = self.runs.whole()
        scored = self.classifier.score(logits.tolist())
        labels = self.classifier.manifest.labels
        logits = logits[: len(labels)]
        label = labels.index(self.request.label if self.request.label is not None else scored.label)
        if self.request.against == labels[label]:
            raise InvalidInput("options.against", f"is {labels[label]!r}, the answer, which is explained; set label, or another against")
        against = None if self.request.against is None else labels.index(self.request.against)
        target = target_of(logits, label, against, self.request.label_alone)
        arrays = self._explained(target) if self._graph_first() else {}
        agrees, error = True, None
        gradients: tuple[Values, float] | None = None

        def at_text() -> tuple[Values, float] | None:
            nonlocal gradients
            if gradients is None and (found := arrays or self._explained(target)):
                gradients = found["embedding_dots"][0].astype(np.float64), float(target.logit(found["logits"][0]))
            return gradients

        if arrays:
            explained = arrays["logits"][0]
            agrees, error = int(explained.argmax()) == int(logits.argmax()), float(np.abs(explained - logits).max())
            at_text()
        texts = self.request.texts
        yield Header(
            texts,
            self.encoded,
            scored,
            target,
            float(target.logit(logits)),
            agrees,
            error,
            self.encoded.unseen,
            self.classifier.graph,
            self.classifier.session.provider,
            self.graph.session.provider if self.graph is not None else "",
            self._adaptive(scored),
        )
        seen = self._heads_seen(arrays)
        view = None if self.request.neuron is None else neuron(arrays, self.request.neuron)
        states = [word_states(arrays.pop(name)[0], self.encoded.words) for name in self._hidden()]
        yield from self._tiles(arrays)
        if view is not None:
            yield view
        arrays.clear()
        temperature, pad_id = self.classifier.manifest.calibration.temperature, self.classifier.tokenizer.pad_id

        def say(found: Attribution, result: Evidence, deciding: DecidingWords | None) -> Reason:
            changed = None if deciding is None or deciding.label is None else labels[deciding.label]
            changing, about = () if deciding is None else deciding.changing_words, self.request.target
            said = reason(texts, self.encoded, scored, labels, target, found, result.verdict, changing, changed, about)
            return Reason(said, found.method)

        attributions = Attributions(self.request, self.runs, target, temperature, pad_id, at_text, say, self.notes, self.remarks)
        if self.request.attributions or self.request.counterfactuals:
            every = self.request.attributions and bool(self.request.methods)
            yield from attributions.parts(self.methods, len(self.methods) if every else 1)
        if self.request.counterfactuals:
            yield from self._counterfactuals(attributions, label, temperature)
        if self.request.without:
            yield from self._without(temperature)
        if self.request.geometry:
            yield from self._geometry(states)
        if seen is not None:
            yield Heads(seen[0], self._effects(target), seen[1])

    def _graph_first(self) -> bool:
        """Whether the explain graph runs before the header. If not, the first values of a long text's sentences come seconds earlier."""
        tried = self.methods if self.request.methods else self.methods[:1]
        sentences = tried == (METHOD_OF_LONG_TEXTS,) and (self.request.attributions or self.request.counterfactuals)
        return not sentences or bool(outputs(self.request, self.runs.layers))

    def _adaptive(self, full: Scored) -> Scored | None:
        """The answer of a part of the text that suffices for adaptive effort, if it tells something else than the full reading."""
        part = part_of(self.classifier, self.request, self.runs.row)
        logits = [] if part is None else self.runs.part(part)
        if not logits or not self.classifier.suffices(logits):
            return None
        scored = self.classifier.score(logits)
        return None if told(scored) == told(full) else scored

    def _explained(self, target: Target) -> Arrays:
        """All requested outputs of the explain graph for the unchanged text; empty without an explain graph."""
        if self.graph is None:
            return {}
        names = ["logits", "embedding_dots", *outputs(self.request, self.graph.session.layers)]
        return self.runs.explained(names, target, np.ones(1, np.float32))

    def _heads_seen(self, arrays: Arrays) -> tuple[HeadPatterns, Floats] | None:
        if not self.request.heads:
            return None
        assert self.graph is not None
        return heads_seen(arrays, self.graph.session.layers, self.encoded, self.request.texts)

    def _tiles(self, arrays: Arrays) -> Iterator[AttentionTile]:
        """The tiles of the maps, as long as there is time for the next map."""
        request = self.request.attention
        if request is None:
            return
        assert self.graph is not None
        layers, heads = self.graph.session.layers, self.graph.session.heads
        # Free these arrays before yielding tiles: a slow reader may keep the generator waiting.
        for name in arrays.keys() - outputs(replace(self.request, heads=False, neuron=None, geometry=False), layers):
            del arrays[name]
        pace, clock = Pace(), self.runs.clock
        for number, one in enumerate(maps(arrays, request, layers, self.encoded)):
            left_s, needed_s = self.runs.left_s(), pace.seconds(1)
            if left_s <= 0 or not self.runs.fits(needed_s):
                reason = f"one takes about {needed_s:.2f} s, and {max(0.0, left_s):.2f} s were left"
                self.notes.append(f"{number} of {map_count(request, layers, heads)} attention maps were returned: {reason}")
                return
            begun = clock()
            found = list(map_tiles(one, request))
            pace.record(1, clock() - begun)
            yield from found

    def _hidden(self) -> Sequence[str]:
        if not self.request.geometry:
            return ()
        assert self.graph is not None
        return hidden_states(self.graph.session.layers)

    def _geometry(self, states: Sequence[Floats]) -> Iterator[WordGeometry]:
        """The geometry of each layer, if there is time for the golden texts, which run once for a model."""
        assert self.graph is not None
        golden = self.graph.golden
        planes = golden.planes(self.runs.hidden)
        if planes is None:
            done, count = golden.progress
            self.notes.append(f"geometry was left out: {done} of {count} golden texts have run, and no time was left for more; ask again")
            return
        for layer, (state, plane) in enumerate(zip(states, planes, strict=True)):
            yield WordGeometry(layer, len(planes) - 1, tuple(golden.spellings), plane, locate(state, plane, golden.spellings))

    def _counterfactuals(self, attributions: Attributions, label: int, temperature: float) -> Iterator[Counterfactuals]:
        first = attributions.first
        if first is None:
            self.notes.append("counterfactuals were left out: the search needs an attribution, and there was no time for one")
            return
        runs = self.runs
        found = []
        for name, search in (("flip", flip), ("keep", keep)):
            found.append(runs.drive(search(runs.count, first.words, label, temperature, runs.answers)))
            if runs.short:
                self.notes.append(f"the search for words that {name} the answer was stopped: no time was left")
        if found[0] is not None and found[1] is not None:
            yield Counterfactuals(found[0], found[1])

    def _without(self, temperature: float) -> Iterator[Without]:
        """The answer without each set of words, as long as there is time."""
        runs, sets = self.runs, [tuple(sorted(words)) for words in self.request.without]
        masks = without(runs.count, sets)
        runs.drive(runs.answers.ask(masks))
        answers = runs.answers.known(masks)
        for words, logits in zip(sets, answers, strict=False):
            label = int(logits.argmax())
            yield Without(words, label, probabilities(logits, temperature)[label])
        if len(answers) < len(sets):
            self.notes.append(f"{len(sets) - len(answers)} of {len(sets)} answers without words were left out: no time was left")

    def _effects(self, target: Target) -> HeadEffects | None:
        """The measured effect of every head; None if there is no time for all of them."""
        assert self.graph is not None
        session, runs = self.graph.session, self.runs
        plan = GatePlan(session.layers, session.heads, runs.rows_max)
        left_s, needed_s = runs.left_s(), runs.explained_pace.seconds(plan.rows)
        logits = []
        if runs.fits(needed_s):
            for gate, uniform in plan:
                if runs.explained_pace.seconds(len(gate)) > runs.left_s():
                    break
                logits.append(runs.explained(["logits"], target, np.ones(len(gate), np.float32), None, gate, uniform)["logits"])
        if sum(map(len, logits)) == plan.rows:
            return effects_from(plan, np.concatenate(logits), target)
        reason = f"{plan.rows} rows take about {needed_s:.2f} s, and {max(0.0, left_s):.2f} s were left"
        self.notes.append(f"the effects of heads are estimated, not measured: {reason}")
        return None
