"""One explanation from what is asked to its summary. What is said of an answer rests on the graph that gave it, int8 as it may be.

Words are erased by the attention mask of the served graph; the explain graph gives gradients, attention, and the effect of heads.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from threading import Lock

import numpy as np

from sentiment.errors import BadBundle
from sentiment.explain.budget import check_bytes
from sentiment.explain.engine.attributions import Attributions
from sentiment.explain.engine.graph_check import ExplainGraph, load_graph
from sentiment.explain.engine.maps import Floats, heads_seen, map_count, map_tiles, maps, neuron, outputs
from sentiment.explain.engine.reading import read
from sentiment.explain.engine.request_check import ERASURE_METHODS, METHODS, check_asked, check_sets, check_token
from sentiment.explain.engine.runs import EXPLAINED, SERVED, Arrays, Clock, Left, Pace, Runs
from sentiment.explain.methods.counterfactuals import flip, keep
from sentiment.explain.methods.erasure import without
from sentiment.explain.methods.heads import HeadEffects, HeadPatterns, effects_from, gate_plan
from sentiment.explain.parts import Asked, AttentionTile, Counterfactuals, Header, Heads, Part, Summary, Without
from sentiment.model.classifier import Classifier
from sentiment.model.execute import Execute, here
from sentiment.model.scores import probabilities
from sentiment.model.session import Stop
from sentiment.model.words import Encoded


def _unlimited() -> float:
    return float("inf")


class Explainer:
    """Explains one classifier's answers. Threads do not disturb each other; the memory of an explanation is needed once for each."""

    def __init__(self, classifier: Classifier, clock: Clock = time.perf_counter) -> None:
        """The explain graph is loaded by the first explanation, or by ``load``.

        Args:
            classifier: whose answers.
            clock: seconds, by which runs are timed.
        """
        self.classifier = classifier
        # Why the explain graph cannot be used, although the bundle has one; known once it was to be loaded.
        self.failure = ""
        self._clock = clock
        self._spec = classifier.manifest.graphs.explain
        self._graph: ExplainGraph | None = None
        self._loading = Lock()
        # What a row takes, by how many tokens it has, up to a power of two.
        self._usual: dict[int, dict[str, float]] = {}

    @property
    def methods(self) -> tuple[str, ...]:
        """What can be asked for, the default first; without gradients where there is no explain graph, or it has failed.

        The default is the one that the bundle's study names, where it can be asked for.
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
        """What is tried where none is asked for, until there is time for one: the study's default, then the service's own first.

        A text of more words than any that was studied gets the latter at once: nothing is known there of the former.
        """
        measured = self.classifier.manifest.explanations
        studied = measured is None or words <= measured.words_max
        return tuple(dict.fromkeys((*self.methods[:studied], self._known[0])))

    def _remarks(self, asked: Asked, first: str, words: int) -> list[str]:
        """Why a text that nobody chose a method for is not explained by the study's default."""
        measured = self.classifier.manifest.explanations
        chosen = bool(asked.methods) or not (asked.attributions or asked.counterfactuals)
        if chosen or measured is None or words <= measured.words_max or first == self.methods[0]:
            return []
        return [
            f"it is explained by {first}: {self.methods[0]} was studied on texts of up to {measured.words_max} words, this one has {words}"
        ]

    def load(self, execute: Execute = here) -> ExplainGraph | None:
        """Load and prove the explain graph, unless that has been done. Other threads wait meanwhile. ``execute`` does the runs.

        Returns:
            None if there is none, or ``failure``.

        Raises:
            CannotRead, OutOfMemory: its files cannot be read now, or there is not enough; the next call tries again.
        """
        with self._loading:
            graph = self._graph
            if graph is None and self._spec is not None and not self.failure:
                try:
                    graph = self._graph = load_graph(self.classifier, self._spec, execute)
                except BadBundle as error:
                    self.failure = str(error)
            # Not what stands there now: another thread may have unloaded it meanwhile.
            return graph

    def unload(self, for_good: bool = False) -> None:
        """Forget the explain graph, if it could be loaded again or ``for_good``; what runs on it goes on. From any thread."""
        if for_good or (self._spec is not None and os.access(self.classifier.bundle.path / self._spec.file, os.R_OK)):
            self._graph = None

    def explain(self, asked: Asked, left_s: Left = _unlimited, stop: Stop | None = None, execute: Execute = here) -> Iterator[Part]:
        """Explain one text, part by part: the header first, the summary last.

        Between them attention in tiles, the neuron view, of each method its attribution and its evidence, counterfactuals, what was
        asked to be left out, heads.

        Args:
            asked: what shall be explained.
            left_s: the seconds that are left, asked again and again; what does not fit is shortened or left out, and noted.
            stop: ends the run that is under way when asked; its error passes to the caller.
            execute: does the runs, maybe in another thread; all else is done here.

        Raises:
            InvalidInput: names the field; before the header.
            Unsupported: the bundle cannot do it; before the header.
            CannotRead: the explain graph's files cannot be read now.
            OutOfMemory: there is not enough for this text.
        """
        begun = self._clock()
        graph = self.load(execute)
        check_asked(asked, self.classifier, None if graph is None else graph.session, self.failure)
        encoded = read(self.classifier, asked)
        if asked.neuron is not None:
            check_token(asked.neuron, encoded)
        check_sets(asked.without, encoded)
        methods = asked.methods or self.defaults(len(encoded.words))
        sizes = (0, 0, 0) if graph is None else (graph.session.layers, graph.session.heads, graph.width)
        check_bytes(replace(asked, methods=asked.methods or methods[:1]), encoded, self.classifier.manifest.labels, *sizes)
        usual = self._usual.setdefault(len(encoded.tokens).bit_length(), {})
        runs = Runs(self.classifier, None if graph is None else graph.session, encoded, left_s, stop, self._clock, execute, usual)
        work = _Work(self.classifier, graph, asked, methods, runs, [], self._remarks(asked, methods[0], len(encoded.words)))
        run_s = 0.0
        for part in work.parts():
            run_s += self._clock() - begun
            yield part
            begun = self._clock()
        run_s += self._clock() - begun
        for name, pace in ((SERVED, runs.served_pace), (EXPLAINED, runs.explained_pace)):
            if pace.rows:
                usual[name] = (usual.get(name, pace.row_s) + pace.row_s) / 2
        yield Summary(not work.notes, (*work.notes, *work.remarks), runs.served_pace.rows, runs.explained_pace.rows, run_s)


@dataclass(slots=True)
class _Work:
    """One explanation under way. ``notes``: a sentence for each thing that was left out or shortened; ``remarks``: for what is doubtful."""

    classifier: Classifier
    graph: ExplainGraph | None
    asked: Asked
    methods: tuple[str, ...]
    runs: Runs
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
        label = labels.index(self.asked.label if self.asked.label is not None else scored.label)
        arrays = self._explained(label)
        agrees, error, at_text = True, None, None
        if arrays:
            explained = arrays["logits"][0]
            agrees, error = int(explained.argmax()) == int(logits.argmax()), float(np.abs(explained - logits).max())
            at_text = arrays["embedding_dots"][0].astype(np.float64), float(explained[label])
        texts = self.asked.texts
        yield Header(texts, self.encoded, scored, label, float(logits[label]), agrees, error, self.encoded.unseen)
        seen = self._heads_seen(arrays)
        view = None if self.asked.neuron is None else neuron(arrays, self.asked.neuron)
        yield from self._tiles(arrays)
        if view is not None:
            yield view
        arrays.clear()
        temperature, pad_id = self.classifier.manifest.calibration.temperature, self.classifier.tokenizer.pad_id
        attributions = Attributions(self.asked, self.runs, label, temperature, pad_id, at_text, self.notes, self.remarks)
        if self.asked.attributions or self.asked.counterfactuals:
            every = self.asked.attributions and bool(self.asked.methods)
            yield from attributions.parts(self.methods, len(self.methods) if every else 1)
        if self.asked.counterfactuals:
            yield from self._counterfactuals(attributions, label, temperature)
        if self.asked.without:
            yield from self._without(temperature)
        if seen is not None:
            yield Heads(seen[0], self._effects(label), seen[1])

    def _explained(self, label: int) -> Arrays:
        """All that the explain graph says of the text as it is, in one run; nothing without one."""
        if self.graph is None:
            return {}
        wanted = ["logits", "embedding_dots", *outputs(self.asked, self.graph.session.layers)]
        return self.runs.explained(wanted, label, np.ones(1, np.float32))

    def _heads_seen(self, arrays: Arrays) -> tuple[HeadPatterns, Floats] | None:
        if not self.asked.heads:
            return None
        assert self.graph is not None
        return heads_seen(arrays, self.graph.session.layers, self.encoded, self.asked.texts)

    def _tiles(self, arrays: Arrays) -> Iterator[AttentionTile]:
        """The maps in tiles, while there is time for the next."""
        asked = self.asked.attention
        if asked is None:
            return
        assert self.graph is not None
        layers, heads = self.graph.session.layers, self.graph.session.heads
        # Before the tiles, which may wait long for whoever reads them.
        for name in arrays.keys() - outputs(replace(self.asked, heads=False, neuron=None), layers):
            del arrays[name]
        pace, clock = Pace(), self.runs.clock
        for number, one in enumerate(maps(arrays, asked, layers, self.encoded)):
            left_s, needed_s = self.runs.left_s(), pace.seconds(1)
            if left_s <= 0 or not self.runs.fits(needed_s):
                wanted = f"one takes about {needed_s:.2f} s, and {max(0.0, left_s):.2f} s were left"
                self.notes.append(f"{number} of {map_count(asked, layers, heads)} attention maps were given: {wanted}")
                return
            begun = clock()
            found = list(map_tiles(one, asked))
            pace.tell(1, clock() - begun)
            yield from found

    def _counterfactuals(self, attributions: Attributions, label: int, temperature: float) -> Iterator[Counterfactuals]:
        first = attributions.first
        if first is None:
            self.notes.append("counterfactuals were left out: they are sought in the order of an attribution, and there was time for none")
            return
        runs = self.runs
        found = []
        for name, search in (("flip", flip), ("keep", keep)):
            found.append(runs.drive(search(runs.count, first.words, label, temperature, runs.answers)))
            if runs.short:
                self.notes.append(f"the search for words that {name} the answer was ended: no time was left")
        if found[0] is not None and found[1] is not None:
            yield Counterfactuals(found[0], found[1])

    def _without(self, temperature: float) -> Iterator[Without]:
        """The answer without each set of words, while there is time."""
        runs, sets = self.runs, [tuple(sorted(words)) for words in self.asked.without]
        masks = without(runs.count, sets)
        runs.drive(runs.answers.ask(masks))
        answers = runs.answers.known(masks)
        for words, logits in zip(sets, answers, strict=False):
            label = int(logits.argmax())
            yield Without(words, label, probabilities(logits, temperature)[label])
        if len(answers) < len(sets):
            self.notes.append(f"{len(sets) - len(answers)} of {len(sets)} answers without words were left out: no time was left")

    def _effects(self, label: int) -> HeadEffects | None:
        """The measured effect of every head, unless there is no time for all."""
        assert self.graph is not None
        session, runs = self.graph.session, self.runs
        plan = gate_plan(session.layers, session.heads, runs.rows_max)
        left_s, needed_s = runs.left_s(), runs.explained_pace.seconds(plan.rows)
        logits = []
        if runs.fits(needed_s):
            for gate, uniform in plan:
                if runs.explained_pace.seconds(len(gate)) > runs.left_s():
                    break
                logits.append(runs.explained(["logits"], label, np.ones(len(gate), np.float32), None, gate, uniform)["logits"])
        if sum(map(len, logits)) == plan.rows:
            return effects_from(plan, np.concatenate(logits), label)
        wanted = f"{plan.rows} rows take about {needed_s:.2f} s, and {max(0.0, left_s):.2f} s were left"
        self.notes.append(f"the effects of heads are estimated, not measured: {wanted}")
        return None
