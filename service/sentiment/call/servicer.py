"""The methods of sentiment.v1.SentimentService. They are independent of the transport, so that HTTP uses them too."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from sentiment.batching.ticket import Priority
from sentiment.call import convert, explain_response
from sentiment.call.call import Call
from sentiment.call.calls import OK, Calls, Method, StreamMethod
from sentiment.call.explain_request import explanation_request, in_classify
from sentiment.call.status import code_of, set_seconds
from sentiment.errors import InvalidInput, RequestError, Unsupported
from sentiment.explain.parts import ExplanationRequest, Header
from sentiment.explain.queue import Explaining
from sentiment.lifecycle.registry import Models
from sentiment.model.effort import ADAPTIVE
from sentiment.model.tokenizer import INLINE_CHARACTERS_MAX
from sentiment.observability.feedback import Feedback, Kept, check_label, key_of
from sentiment.observability.tracing.trace import StageSpan
from sentiment.pipeline.answer import Answer, Outcome
from sentiment.pipeline.loop_turns import LoopTurns
from sentiment.pipeline.queries import Query
from sentiment.pipeline.served import Served
from sentiment.v1 import sentiment_pb2 as pb

# Answers to texts and to their parts, of all calls together, that are converted in a turn of the event loop: about a millisecond.
TURN = 128
# The part of a batch's time that is kept for its answers' way to the client: a tenth, but no more than a busy machine needs for this many
# answers and a network for their bytes; for more answers in proportion.
RESERVE_SHARE, RESERVE_S_MAX, RESERVE_ANSWERS = 0.1, 0.25, 1024

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """Limits that the service states in Model.limits, named as their settings. That of a message is in ``CallLimits``."""

    text_bytes_max: int
    batch_items_max: int
    call_rows_max: int
    # Items of a batch that may be interactive. This one is not stated.
    interactive_items_max: int
    sentences_max: int
    targets_max: int
    # As in ``convert.Defaults``. Not stated either.
    effort: str
    answer_cache_bytes: int


class SentimentService:
    """The service's methods over the loaded models."""

    def __init__(self, models: Models, calls: Calls, limits: ServiceLimits, feedback: Feedback | None = None) -> None:
        """``feedback``: None if the server keeps no journal, or if another process takes it."""
        self.models = models
        self.calls = calls
        self.limits = limits
        self._feedback = feedback
        self._turns = LoopTurns(TURN)
        self.classify_method = Method("Classify", pb.ClassifyRequest, self.classify)
        self.classify_batch_method = Method("ClassifyBatch", pb.ClassifyBatchRequest, self.classify_batch)
        self.explain_method = StreamMethod("Explain", pb.ExplainRequest, self.explain)
        self.list_models_method = Method("ListModels", pb.ListModelsRequest, self.list_models)
        self.get_model_method = Method("GetModel", pb.GetModelRequest, self.get_model)
        self.feedback_method = Method("Feedback", pb.FeedbackRequest, self.feedback)
        self.unary_methods: tuple[Method[Any, Any], ...] = (  # each has its own pair of messages
            self.classify_method,
            self.classify_batch_method,
            self.list_models_method,
            self.get_model_method,
            self.feedback_method,
        )

    @property
    def takes_feedback(self) -> bool:
        """Whether this process keeps a journal, which ``feedback`` writes to."""
        return self._feedback is not None

    async def classify(self, request: pb.ClassifyRequest, call: Call) -> pb.ClassifyResponse:
        """Classify one text, and explain the answer if the request asks for it."""
        served = call.served = self.models.find(request.model)
        options = convert.check_options(request, Priority.INTERACTIVE, self.limits)
        query = convert.query_of(request, options, call)
        explaining = _explaining(served) if request.HasField("explain") else None
        # An explanation is of the reading in full. With front ends, another process than the caller's reads it.
        query.adaptive &= explaining is None
        query.cached &= explaining is None
        explanation = explanation_request(request, explaining.limits.classify_bytes_max) if explaining is not None else None
        served.metrics.stage["receive"](call.elapsed_s())
        call.texts[OK] = 1
        answer = await served.classify(query, call.arrived_at, call.deadline_at)
        call.answered, call.tokens = 1, answer.tokens
        await self.turn_for(answer)
        response = pb.ClassifyResponse()
        convert.set_response(response, answer, served, options.abstain_below)
        if explanation is not None:
            await _add_explanation(response, served, explanation, call)
        return response

    async def classify_batch(self, request: pb.ClassifyBatchRequest, call: Call) -> pb.ClassifyBatchResponse:
        """Classify many texts. The call fails as a whole only if the model, an option or the number of items is wrong."""
        served = call.served = self.models.find(request.model)
        with served.users:
            options = convert.check_options(request, Priority.BULK, self.limits)
            count, limit = len(request.items), self.limits.batch_items_max
            if not 1 <= count <= limit:
                raise InvalidInput("items", f"must have 1 to {limit} items, got {count}")
            queries = [
                convert.query_of(item, options, call, index, f"items[{index}].text")
                async for index, item in in_turns(request.items, self._turns, lambda item: 1 + len(item.targets))
            ]
            keep_few_interactive(queries, self.limits.interactive_items_max)
            if call.trace is not None:
                call.trace.attributes["sentiment.texts"] = count
            served.metrics.stage["receive"](call.elapsed_s())
            call.texts[OK] = count
            most = sum(answers_max(query, self.limits.sentences_max) for query in queries)
            outcomes = await served.classify_many(queries, call.arrived_at, call.deadline_at - reserve_s(call, most))
            call.texts = Counter(map(code_name_of, outcomes))
            failed = [outcome for outcome in outcomes if isinstance(outcome, RequestError)]
            call.first_error = next(iter(failed), None)
            faults = (self.calls.own_fault(call, code_name_of(error), error, call.asked_s) for error in failed)
            call.own_faults = Counter(filter(None, faults))
            call.answered, call.tokens = call.texts[OK], tokens_of(outcomes)
            response = pb.ClassifyBatchResponse()
            async for _, outcome in in_turns(outcomes, self._turns, answers_in):
                convert.set_result(response.results.add(), outcome, served, options.abstain_below)
            return response

    async def turn_for(self, outcome: Outcome) -> None:
        """Wait until the answers to a text's parts, if it has some, can be converted without keeping the event loop from others."""
        if (answers := answers_in(outcome)) > 1:
            await self._turns.wait(answers)

    async def explain(self, request: pb.ExplainRequest, call: Call) -> AsyncGenerator[pb.ExplainResponse, None]:
        """Explain one text. Yields each message as soon as it is ready."""
        served = call.served = self.models.find(request.model)
        explanation = explanation_request(request, _explaining(served).limits.bytes_max)
        served.check(Query(explanation.text, explanation.text_pair, explanation.truncation))
        async with aclosing(_messages(served, explanation, call)) as messages:
            async for message in messages:
                yield message

    async def list_models(self, _request: pb.ListModelsRequest, _call: Call) -> pb.ListModelsResponse:
        """Describe all loaded models, without their cards."""
        return pb.ListModelsResponse(models=[self._describe(served, with_card=False) for served in self.models.all()])

    async def get_model(self, request: pb.GetModelRequest, call: Call) -> pb.GetModelResponse:
        """Describe one loaded model, with its card."""
        call.served = self.models.find(request.model)
        return pb.GetModelResponse(model=self._describe(call.served, with_card=True))

    async def feedback(self, request: pb.FeedbackRequest, call: Call) -> pb.FeedbackResponse:
        """Take the right label of an answer or a text."""
        feedback = self._feedback
        if feedback is None:
            raise Unsupported("this server keeps no journal, which feedback is written to (setting SENTIMENT_JOURNAL)")
        if bool(request.request_id) == bool(request.text):
            raise InvalidInput("request_id", "must be set, or text instead; exactly one of them is needed")
        if request.text and request.item:
            raise InvalidInput("item", f"must be unset with text, got {request.item}")
        label = convert.right_label(request)
        if request.request_id:
            answer = await feedback.answer(convert.answer_asked(request), request.item, call.deadline_at, call.account)
            if request.model not in ("", answer.model, answer.model.partition("/")[0]):
                raise InvalidInput("model", f"is {request.model[:128]!r}, but {answer.model} answered; leave it unset")
        else:
            answer = await self._answer_again(request, label, call)
        served = next((one for one in self.models.all() if one.classifier.bundle.digest == answer.digest), None)
        right = feedback.take(answer, label, None if served is None else served.metrics)
        name, _, version = answer.model.partition("/")
        model = pb.ModelId(name=name, version=int(version), digest=answer.digest)
        return pb.FeedbackResponse(predicted=answer.label, right=right, abstain=answer.abstain, model=model)

    async def _answer_again(self, request: pb.FeedbackRequest, label: str | None, call: Call) -> Kept:
        """The answer to a text that somebody labels; no other text has to wait for it, and it is not counted."""
        served = call.served = self.models.find(request.model)
        labels, digest = tuple(served.classifier.manifest.labels), served.classifier.bundle.digest
        pair = request.text_pair if request.HasField("text_pair") else None
        check_label(label, labels)
        adaptive = self.limits.effort == ADAPTIVE
        query = Query(request.text, pair, priority=Priority.BULK, trace=call.trace, adaptive=adaptive, counted=False)
        scored = (await served.classify(query, call.arrived_at, call.deadline_at)).scored
        call.answered = 1
        key = key_of(digest, request.text, pair)
        return Kept(key, served.id, digest, labels, scored.label, scored.abstain, text=request.text, text_pair=pair)

    def _describe(self, served: Served, with_card: bool) -> pb.Model:
        explained = served.explaining.limits if served.explaining is not None else None
        limits = pb.Limits(
            text_bytes=self.limits.text_bytes_max,
            batch_items=self.limits.batch_items_max,
            message_bytes=self.calls.limits.message_bytes_max,
            items_in_flight_per_call=self.limits.call_rows_max,
            explanation_bytes=explained.bytes_max if explained is not None else 0,
            classify_explanation_bytes=explained.classify_bytes_max if explained is not None else 0,
            sentences=self.limits.sentences_max,
            targets=self.limits.targets_max,
        )
        methods = served.explaining.explainer.methods if served.explaining is not None else ()
        return convert.model_of(served, served is self.models.find(""), limits, methods, with_card)


def keep_few_interactive(queries: Sequence[Query], limit: int) -> None:
    """Make the texts of a call bulk but for the first ``limit``, whatever the call asks for: no caller waits for that many at once."""
    for query in queries[limit:]:
        query.priority = Priority.BULK


def reserve_s(call: Call, answers: int) -> float:
    """How long before the call's deadline the items of a batch expire, so that the others' answers still reach the client.

    ``answers``: how many there may be, those to parts included.
    """
    return min(RESERVE_S_MAX * max(1.0, answers / RESERVE_ANSWERS), RESERVE_SHARE * (call.deadline_at - call.arrived_at))


def answers_max(query: Query, sentences_max: int) -> int:
    """The most answers that a query may have: to the whole and to its parts. A sentence has two characters or more."""
    return 1 + len(query.targets) + (min(sentences_max, 1 + len(query.text) // 2) if query.sentences else 0)


def answers_in(outcome: Outcome) -> int:
    """How many answers an outcome has: to the whole and to its parts. An error counts as one."""
    parts = outcome.parts if isinstance(outcome, Answer) else None
    return 1 if parts is None else 1 + len(parts.sentences) + len(parts.targets)


async def in_turns(items: Sequence[T], turns: LoopTurns, work: Callable[[T], int]) -> AsyncGenerator[tuple[int, T], None]:
    """Yield the items with their places, as many in a turn of the event loop as ``turns`` has room for their ``work``."""
    for place, item in enumerate(items):
        await turns.wait(work(item))
        yield place, item


def tokens_of(outcomes: Iterable[Outcome]) -> int:
    """The tokens of the texts that are answered."""
    return sum(outcome.tokens for outcome in outcomes if isinstance(outcome, Answer))


def code_name_of(outcome: Outcome) -> str:
    """The status code of a text."""
    return OK if isinstance(outcome, Answer) else code_of(outcome).name


def _explaining(served: Served) -> Explaining:
    if served.explaining is None:
        raise Unsupported("explanations are off on this server (SENTIMENT_EXPLAIN), or its memory limit leaves no room for one")
    return served.explaining


async def _add_explanation(response: pb.ClassifyResponse, served: Served, request: ExplanationRequest, call: Call) -> None:
    try:
        async with aclosing(_messages(served, request, call)) as messages:
            async for message in messages:
                explain_response.add(message, response.explanation)
    except InvalidInput as error:
        raise in_classify(error) from error
    set_seconds(response.timing.total, call.elapsed_s())


async def _messages(served: Served, request: ExplanationRequest, call: Call) -> AsyncGenerator[pb.ExplainResponse, None]:
    """The messages of an explanation. Closing the generator withdraws the explanation from its queue."""
    converter = explain_response.Messages(convert.model_id(served), served.classifier.manifest.labels)
    # The span covers the time from the request to the last part that the client read.
    with StageSpan(call.trace, "explain"):
        async with aclosing(_explaining(served).explain(request, call.deadline_at, call.account)) as parts:
            async for part in parts:
                messages: Iterable[pb.ExplainResponse] = converter.of(part)
                if isinstance(part, Header) and sum(map(len, part.texts)) > INLINE_CHARACTERS_MAX:
                    # Spans are counted from the start of the text, which takes 150 ms for a megabyte that is not ASCII.
                    messages = await asyncio.to_thread(list, messages)
                for message in messages:
                    yield message
