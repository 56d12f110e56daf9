"""Makes the OpenAPI document of the HTTP routes, ``service/sentiment/doors/http/openapi.json``, from the proto: ``make reference``.

Messages, fields, their types and descriptions come from the proto. What it cannot say stands here: which rpc a route calls, which fields a
request needs, limits that are only in comments, examples, and the routes of Hugging Face's servers, which have messages of their own.
"""

import json
import re
import textwrap
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto

from sentiment.doors.http.openapi import SETTING
from sentiment.model.text_check import TARGET_BYTES_MAX
from sentiment.settings import Settings

Schema = dict[str, Any]  # JSON
Comments = dict[tuple[int, ...], str]
Messages = Mapping[str, tuple[DescriptorProto, tuple[int, ...]]]
Kind = FieldDescriptorProto.Type

ROOT = Path(__file__).resolve().parents[1]
PREFIX = ".sentiment.v1."
# By message and field: what the type does not say. TEXT: 1 character to the server's limit.
TEXT = {"minLength": 1, "maxLength": Settings.model_fields["text_bytes_max"].default, SETTING: "text_bytes_max"}
TARGETS = {
    "items": {"type": "string", "minLength": 1, "maxLength": TARGET_BYTES_MAX},
    "maxItems": Settings.model_fields["targets_max"].default,
    SETTING: "targets_max",
}
BATCH = {"minItems": 1, "maxItems": Settings.model_fields["batch_items_max"].default, SETTING: "batch_items_max"}
SHARE = {"minimum": 0, "maximum": 1}
LIMITS: dict[tuple[str, str], Schema] = {
    ("ClassifyRequest", "text"): TEXT,
    ("ExplainRequest", "text"): TEXT,
    ("ExplainRequest", "target"): {"maxLength": TARGET_BYTES_MAX},
    ("Item", "text"): TEXT,
    ("ClassifyRequest", "targets"): TARGETS,
    ("Item", "targets"): TARGETS,
    ("ClassifyRequest", "abstain_below"): SHARE,
    ("ClassifyBatchRequest", "items"): BATCH,
    ("ClassifyBatchRequest", "abstain_below"): SHARE,
    ("FeedbackRequest", "request_id"): {"maxLength": 128, "pattern": "^[ -~]*$"},
    ("FeedbackRequest", "item"): {"minimum": 0},
    ("FeedbackRequest", "label"): {"minLength": 1},
    ("ExplainOptions", "bytes_max"): {"minimum": 0},
    ("ExplainOptions", "without"): {"maxItems": 64},
    ("WordSet", "words"): {"minItems": 1},
    ("AttentionOptions", "top_p"): SHARE,
    ("AttributionOptions", "steps"): {"minimum": 0, "maximum": 256},
}
REQUIRED = {
    "ClassifyRequest": ["text"],
    "ExplainRequest": ["text"],
    "Item": ["text"],
    "ClassifyBatchRequest": ["items"],
    "WordSet": ["words"],
}
SCALARS: dict[int, Schema] = {
    Kind.TYPE_STRING: {"type": "string"},
    Kind.TYPE_BOOL: {"type": "boolean"},
    Kind.TYPE_INT32: {"type": "integer", "format": "int32", "minimum": -(2**31), "maximum": 2**31 - 1},
    Kind.TYPE_FLOAT: {"type": "number", "format": "float"},
    Kind.TYPE_BYTES: {"type": "string", "contentEncoding": "base64"},
}
FOREIGN: dict[str, Schema] = {
    ".google.protobuf.Duration": {"type": "string", "pattern": r"^-?\d+(\.\d{1,9})?s$", "examples": ["0.002027803s"]},
    ".google.rpc.Status": {"$ref": "#/components/schemas/Error"},
}
ERROR = {
    "type": "object",
    "description": "Why there is no answer. Status codes: see the errors of the service's contract.",
    "properties": {
        "status": {"type": "string", "description": "The name of the status code.", "examples": ["INVALID_ARGUMENT"]},
        "code": {"type": "integer", "description": "The number of the status code, from google.rpc.Code."},
        "message": {"type": "string", "description": "Fact, value and limit, after the path of the field."},
        "details": {
            "type": "array",
            "description": "google.rpc.BadRequest, which names the field, or google.rpc.RetryInfo.",
            "items": {"type": "object", "properties": {"@type": {"type": "string"}}, "required": ["@type"]},
        },
    },
    "required": ["status", "code", "message"],
}
UNKNOWN = (
    "unknown field `txt`; fields are text, text_pair, model, truncation, priority, explain, sentences, targets, effort, no_cache, "
    "abstain_below"
)
WRONG = {
    "error": {
        "status": "INVALID_ARGUMENT",
        "code": 3,
        "message": UNKNOWN,
        "details": [{"@type": "type.googleapis.com/google.rpc.BadRequest", "field_violations": [{"description": UNKNOWN}]}],
    }
}
# By HTTP status: a name, and when it is given.
FAILURES = {
    "400": (
        "Wrong",
        "The request is wrong (INVALID_ARGUMENT), or this model or server cannot do that (FAILED_PRECONDITION). Do not retry.",
    ),
    "401": ("Unauthenticated", "The server wants a bearer token, and the call has no valid one."),
    "404": ("NotFound", "No such model, or no such answer. Do not retry."),
    "429": ("Refused", "Too much work is waiting. Retry after the seconds of Retry-After; without it, no retry can be in time."),
    "500": ("Failed", "A fault of the server's. Its log has the cause under x-request-id."),
    "503": ("Unavailable", "The server is starting or stopping. Retry, on another server if there is one."),
    "504": ("Expired", "Not finished by the deadline, or the deadline is too near even for an idle server."),
}
MODEL = {"name": "english", "version": 4, "digest": "e1b6fab8434f" + 52 * "0"}
ANSWER: Schema = {
    "prediction": {
        "label": "positive",
        "score": 0.9946,
        "scores": [{"label": "negative", "score": 0.0030}, {"label": "positive", "score": 0.9946}, {"label": "neutral", "score": 0.0024}],
        "abstain": False,
        "mixed": False,
    },
    "model": MODEL,
    "tokens": 5,
    "truncated": False,
    "sentences": [],
    "sentences_total": 0,
    "targets": [],
    "language_suspect": False,
    "early": False,
    "timing": {"total": "0.009411s", "tokenize": "0.000147s", "queue": "0.000206s", "run": "0.008521s", "batch_rows": 1},
}
EMPTY = {"status": "INVALID_ARGUMENT", "code": 3, "message": "items[1].text: has 0 characters; the limit is at least 1"}
# By route: rpc, examples of the request, example of the answer.
POSTS: dict[str, tuple[str, dict[str, tuple[str, Schema]], Schema | None]] = {
    "/v1/classify": (
        "Classify",
        {
            "text": ("One text", {"text": "a good film"}),
            "windows": ("A long text, read whole", {"text": "It began well. ...", "truncation": "TRUNCATION_WINDOWS"}),
            "sentences": ("With the answer to each sentence", {"text": "Good food. Bad service.", "sentences": True}),
            "explained": ("With its explanation", {"text": "a good film", "explain": {"methods": ["occlusion"]}}),
        },
        ANSWER,
    ),
    "/v1/classify:batch": (
        "ClassifyBatch",
        {"items": ("Two texts, one of them empty", {"items": [{"text": "a good film"}, {"text": ""}]})},
        {"results": [{"response": ANSWER}, {"error": EMPTY}]},
    ),
    "/v1/explain": (
        "Explain",
        {
            "default": ("The model's default method", {"text": "a good film"}),
            "more": ("Word sets that flip the label", {"text": "a good film", "options": {"counterfactuals": True}}),
        },
        None,
    ),
    "/v1/feedback": (
        "Feedback",
        {
            "text": ("The right label of a text", {"text": "a good film", "label": "positive"}),
            "answer": ("Of an answer", {"request_id": "0f7c1d5a9b3e42868d20c4b7a6f1e593", "label": "negative"}),
            "none": ("No label is right", {"text": "a good film", "none": True}),
        },
        {"predicted": "positive", "right": True, "abstain": False, "model": MODEL},
    ),
}
# Of Hugging Face's servers: messages, and routes with what they are, the names of their messages, and examples.
TEXT_SCHEMA = {"type": "string", **TEXT}
TEXT_OR_PAIR = {"type": "array", "items": TEXT_SCHEMA, "minItems": 1, "maxItems": 2}
LABELS = {"type": "array", "items": {"$ref": "#/components/schemas/LabelScore"}, "description": "The labels, the most probable first."}
LABELS_OF_TEXTS = {"type": "array", "items": LABELS, "description": "The labels of each text."}
PARAMETERS = {
    "type": "object",
    "properties": {
        "top_k": {"type": "integer", "minimum": 1, "description": "At most as many labels of a text. Unset: all."},
        "function_to_apply": {"const": "softmax", "description": "Other functions are refused."},
    },
    "additionalProperties": False,
}
PLAIN: dict[str, Schema] = {
    "PipelineRequest": {
        "inputs": {"anyOf": [TEXT_SCHEMA, {"type": "array", "items": TEXT_SCHEMA, **BATCH}], "description": "A text, or several."},
        "parameters": PARAMETERS,
    },
    "PredictRequest": {
        "inputs": {
            "anyOf": [TEXT_SCHEMA, TEXT_OR_PAIR, {"type": "array", "items": TEXT_OR_PAIR, **BATCH}],
            "description": "A text, a pair of texts, or a batch of arrays of one or two texts each.",
        },
        "truncate": {"type": "boolean", "description": "Read the beginning of a long text; false: refuse it. Unset: the model's default."},
        "truncation_direction": {"enum": ["right", "Right"], "description": "The other direction is refused."},
        "raw_scores": {"const": False, "description": "Raw scores are refused."},
    },
}
PLAIN = {
    name: {"type": "object", "properties": members, "required": ["inputs"], "additionalProperties": False}
    for name, members in PLAIN.items()
} | {
    "PipelineResponse": LABELS_OF_TEXTS,
    "PredictResponse": {"anyOf": [LABELS, LABELS_OF_TEXTS]},
    "PlainError": {
        "type": "object",
        "description": "Why there is no answer, as Hugging Face's servers say it.",
        "properties": {
            "error": {"type": "string", "description": "Fact, value and limit, after the path of the field."},
            "error_type": {"type": "string", "enum": ["Validation", "Overloaded", "Unhealthy", "Backend"]},
        },
        "required": ["error", "error_type"],
    },
}
SHOWN = sorted(ANSWER["prediction"]["scores"], key=lambda score: -score["score"])
AS = "The default model answers; the first text that fails ends the request."
HUGGING_FACE: dict[str, tuple[str, str, dict[str, tuple[str, Schema]], list[Any]]] = {
    "/": (
        "pipeline",
        f"Classifies texts as Hugging Face's Inference API does. {AS}",
        {
            "text": ("One text", {"inputs": "a good film"}),
            "texts": ("Two texts, the best label of each", {"inputs": ["a good film", "a fine film"], "parameters": {"top_k": 1}}),
        },
        [SHOWN],
    ),
    "/predict": (
        "predict",
        f"Classifies texts as text-embeddings-inference does. {AS}",
        {"text": ("One text", {"inputs": "a good film"}), "texts": ("Two texts", {"inputs": [["a good film"], ["a fine film"]]})},
        SHOWN,
    ),
}
NAME = {
    "name": "name",
    "in": "path",
    "required": True,
    "description": "The model's name.",
    "schema": {"type": "string"},
    "example": "english",
}
VERSION = {**NAME, "name": "version", "description": "Its version.", "schema": {"type": "string"}, "example": "4"}
GETS: dict[str, tuple[str, list[Schema]]] = {
    "/v1/models": ("ListModels", []),
    "/v1/models/{name}": ("GetModel", [NAME]),
    "/v1/models/{name}/{version}": ("GetModel", [NAME, VERSION]),
}
PROBES = {
    "/healthz": ("Whether the process makes progress.", "Yes.", "No: restart it."),
    "/readyz": ("Whether the server answers calls.", "Yes.", "No: it is starting, stopping or stuck."),
}


def openapi(file: FileDescriptorProto) -> str:
    """The document.

    Args:
        file: sentiment.proto, with comments.
    """
    comments = {tuple(place.path): place.leading_comments for place in file.source_code_info.location}
    (service,) = file.service
    methods = {method.name: (method, _prose(comments[6, 0, 2, place])) for place, method in enumerate(service.method)}
    schemas = _schemas(file, comments)
    paths: Schema = {}
    for path, (rpc, requests, answer) in POSTS.items():
        method, said = methods[rpc]
        content: Schema = {"schema": _ref(method.output_type.removeprefix(PREFIX))}
        if answer is not None:
            content["example"] = answer
        kind = "application/x-ndjson" if method.server_streaming else "application/json"
        if method.server_streaming:
            content["schema"] = _ref("ExplainLine")
            said += " A message is a line of JSON. An error after the first line is the last line."
        answered = _responses({"description": "The answer.", "headers": _headers(), "content": {kind: content}})
        paths[path] = _post(rpc[0].lower() + rpc[1:], said, method.input_type.removeprefix(PREFIX), requests, answered)
    for path, (rpc, parameters) in GETS.items():
        method, said = methods[rpc]
        answered = {"schema": _ref(method.output_type.removeprefix(PREFIX))}
        paths[path] = {
            "get": {
                "operationId": rpc[0].lower() + rpc[1:] + ("Version" if VERSION in parameters else ""),
                "tags": ["Models"],
                "summary": said.partition(". ")[0].removesuffix("."),
                "description": said,
                "parameters": [*parameters, {"$ref": "#/components/parameters/timeout"}],
                "responses": _responses(
                    {"description": "The answer.", "headers": _headers(), "content": {"application/json": answered}}, parameters != []
                ),
            }
        }
    paths |= {path: _of_hugging_face(*described) for path, described in HUGGING_FACE.items()}
    paths |= _operated()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "Sentiment service",
            "version": version,
            "description": "Classifies texts with fine-tuned models, and explains the answers.\n\n"
            + textwrap.dedent(comments[12,]).strip(),
            "license": {"name": "Apache 2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": ".", "description": "The server that this document is from."}],
        # Some servers want a token.
        "security": [{}, {"bearer": []}],
        "tags": [
            {"name": "Texts", "description": "Classify and explain texts."},
            {"name": "Models", "description": "What the server has loaded."},
            {"name": "Operation", "description": "For probes and Prometheus."},
        ],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "parameters": _parameters(),
            "responses": {name: _failure(status, said) for status, (name, said) in FAILURES.items()},
            "headers": {
                "requestId": {"description": "The call's id: yours, or one that the server made.", "schema": {"type": "string"}},
                "retryAfter": {"description": "Seconds after which a retry may succeed.", "schema": {"type": "integer", "minimum": 1}},
            },
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _of_hugging_face(name: str, said: str, examples: dict[str, tuple[str, Schema]], example: list[Any]) -> Schema:
    content = {"application/json": {"schema": _ref(f"{name.title()}Response"), "example": example}}
    failures = {status: _failure(status, why, "PlainError") for status, (_, why) in FAILURES.items() if status != "404"}
    responses = {"200": {"description": "The answer.", "headers": _headers(), "content": content}, **failures}
    return _post(name, said, f"{name.title()}Request", examples, responses)


def _post(name: str, said: str, asked: str, examples: dict[str, tuple[str, Schema]], responses: Schema) -> Schema:
    shown = {key: {"summary": summary, "value": value} for key, (summary, value) in examples.items()}
    return {
        "post": {
            "operationId": name,
            "tags": ["Texts"],
            "summary": said.partition(". ")[0].removesuffix("."),
            "description": said,
            "parameters": [{"$ref": "#/components/parameters/timeout"}, {"$ref": "#/components/parameters/requestId"}],
            "requestBody": {
                "required": True,
                "description": "May be compressed with gzip (Content-Encoding: gzip).",
                "content": {"application/json": {"schema": _ref(asked), "examples": shown}},
            },
            "responses": responses,
        }
    }


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _headers() -> Schema:
    return {"x-request-id": {"$ref": "#/components/headers/requestId"}}


def _parameters() -> Schema:
    timeout = {
        "name": "Grpc-Timeout",
        "in": "header",
        "description": "The deadline: 1 to 8 digits and a unit: H, M, S, m (milliseconds), u or n. Unset: the server's default, 5 s.",
        "schema": {"type": "string", "pattern": "^[0-9]{1,8}[HMSmun]$"},
        "example": "500m",
    }
    request_id = {
        "name": "x-request-id",
        "in": "header",
        "description": "Your name for the call, 1 to 128 printable ASCII characters, returned with the answer and logged.",
        "schema": {"type": "string", "pattern": "^[!-~]{1,128}$"},
    }
    return {"timeout": timeout, "requestId": request_id}


def _responses(answer: Schema, not_found: bool = True) -> Schema:
    failures = {
        status: {"$ref": f"#/components/responses/{name}"} for status, (name, _) in FAILURES.items() if not_found or status != "404"
    }
    return {"200": answer, **failures}


def _failure(status: str, said: str, body: str = "ErrorBody") -> Schema:
    content: Schema = {"schema": _ref(body)}
    if status == "400" and body == "ErrorBody":
        content["example"] = WRONG
    headers = {} if status == "401" else _headers()
    if status == "429":
        headers["Retry-After"] = {"$ref": "#/components/headers/retryAfter"}
    return {"description": said, "headers": headers, "content": {"application/json": content}}


def _operated() -> Schema:
    text = {"text/plain": {"schema": {"type": "string"}}}
    paths: Schema = {}
    for path, (said, good, bad) in PROBES.items():
        answers = {"200": {"description": good, "content": text}, "503": {"description": bad, "content": text}}
        paths[path] = {"get": {"operationId": path[1:], "tags": ["Operation"], "summary": said, "security": [{}], "responses": answers}}
    exposed = {"200": {"description": "The metrics.", "content": {**text, "application/openmetrics-text": {"schema": {"type": "string"}}}}}
    metrics = {
        "operationId": "metrics",
        "tags": ["Operation"],
        "summary": "Metrics for Prometheus.",
        "security": [{}],
        "responses": exposed,
    }
    return {**paths, "/metrics": {"get": metrics}}


def _schemas(file: FileDescriptorProto, comments: Comments) -> Schema:
    """The schemas of all messages and enums that a route has, and of errors."""
    messages = {message.name: (message, (4, number)) for number, message in enumerate(file.message_type)}
    rpcs = {rpc for rpc, *_ in (*POSTS.values(), *GETS.values())}
    (service,) = file.service
    used = [method for method in service.method if method.name in rpcs]
    asked = _reached([method.input_type for method in used if method.name in {rpc for rpc, *_ in POSTS.values()}], messages, comments)
    answered = _reached([method.output_type for method in used], messages, comments)
    assert not asked & answered, f"both in requests and in answers: {asked & answered}"
    known = {(message, field.name) for message, (made, _) in messages.items() for field in made.field}
    assert set(LIMITS) <= known, f"not in the proto: {set(LIMITS) - known}"
    schemas = {name: _message(*messages[name], comments, name in asked) for name in asked | answered}
    of_requests = {field.type_name.removeprefix(PREFIX) for name in asked for field in messages[name][0].field}
    for number, enum in enumerate(file.enum_type):
        schemas[enum.name] = _enum(enum, (5, number), comments, enum.name in of_requests)
    error = {"type": "object", "properties": {"error": _ref("Error")}, "required": ["error"], "description": "Why a call failed."}
    line = {"anyOf": [_ref("ExplainResponse"), _ref("ErrorBody")], "description": "A line of an explanation."}
    # An item that has a text alone may be that text.
    schemas["Item"] |= {"type": ["object", "string"], **TEXT}
    return {**schemas, **PLAIN, "Error": ERROR, "ErrorBody": error, "ExplainLine": line}


def _reached(kinds: list[str], messages: Messages, comments: Comments) -> set[str]:
    found: set[str] = set()
    waiting = [kind.removeprefix(PREFIX) for kind in kinds]
    while waiting:
        name = waiting.pop()
        if name in messages and name not in found:
            found.add(name)
            message, path = messages[name]
            waiting += [field.type_name.removeprefix(PREFIX) for _, field in _fields(message, path, comments)]
    return found


def _fields(message: DescriptorProto, path: tuple[int, ...], comments: Comments) -> Iterator[tuple[str, FieldDescriptorProto]]:
    """The fields that are built, each with its comment."""
    for place, field in enumerate(message.field):
        said = _prose(comments.get((*path, 2, place), ""))
        if not said.startswith("UNIMPLEMENTED"):
            yield said, field


def _message(message: DescriptorProto, path: tuple[int, ...], comments: Comments, asked: bool) -> Schema:
    schema: Schema = {"type": "object"}
    if said := _prose(comments.get(path, "")):
        schema["description"] = said
    required, one_of = list(REQUIRED.get(message.name, ())), []
    properties: Schema = {}
    schema["properties"] = properties
    for said, field in _fields(message, path, comments):
        properties[field.name] = _property(message, field, said)
        if field.HasField("oneof_index") and not field.proto3_optional:
            one_of.append({"required": [field.name]})
        elif not asked and _always_there(field):
            required.append(field.name)
    if required:
        schema["required"] = required
    if one_of:
        schema |= {"oneOf": one_of}
    if asked:
        schema["additionalProperties"] = False
    return schema


def _always_there(field: FieldDescriptorProto) -> bool:
    """Whether answers always have the field: unset, it has its default."""
    repeated = field.label == FieldDescriptorProto.Label.LABEL_REPEATED
    return repeated or not (field.type == Kind.TYPE_MESSAGE or field.proto3_optional)


def _property(message: DescriptorProto, field: FieldDescriptorProto, said: str) -> Schema:
    nested = {f"{PREFIX}{message.name}.{each.name}": each for each in message.nested_type}
    schema: Schema
    if field.type_name in nested:
        key, value = nested[field.type_name].field
        assert key.type == Kind.TYPE_STRING, f"{field.name}: the keys of a map in JSON are strings"
        schema = {"type": "object", "additionalProperties": _value(value)}
    elif field.label == FieldDescriptorProto.Label.LABEL_REPEATED:
        schema = {"type": "array", "items": _value(field)}
    else:
        schema = dict(_value(field))
    if said:
        schema["description"] = said
    return {**schema, **LIMITS.get((message.name, field.name), {})}


def _value(field: FieldDescriptorProto) -> Schema:
    if field.type in SCALARS:
        return SCALARS[field.type]
    return FOREIGN.get(field.type_name) or _ref(field.type_name.removeprefix(PREFIX))


def _enum(enum: EnumDescriptorProto, path: tuple[int, ...], comments: Comments, asked: bool) -> Schema:
    said = [_prose(comments.get(path, ""))]
    for place, value in enumerate(enum.value):
        told = _prose(comments.get((*path, 2, place), ""))
        said.append(f"- {value.name}{': ' + told if told else ''}")
    if asked:
        short = (value.name.removeprefix(enum.value[0].name.removesuffix("UNSPECIFIED")).lower() for value in enum.value[1:])
        said[0] = f"{said[0]} A request may name a value in short: {', '.join(short)}.".strip()
    return {"type": "string", "description": "\n".join(said).strip(), "enum": [value.name for value in enum.value]}


def _prose(comment: str) -> str:
    return re.sub(r"\s+", " ", comment).strip()
