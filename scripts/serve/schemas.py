"""The part `schemas` of scripts/check_serve.sh: JSON of the schemas that pydantic makes, by `parse` of the openai
package, and of every supported keyword, checked by the package jsonschema.

The model is small and hardly trained, so that what it writes is nearly random: all that holds is the schema.
"""

import datetime
import enum
import ipaddress
import json
import urllib.error
import urllib.request
import uuid
from typing import Annotated, Literal, Union

import jsonschema
import openai
from clients import QUESTION, Checks, chat_run
from pydantic import BaseModel, Field


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str | None


class Owner(BaseModel):
    pet: Annotated[Union[Cat, Dog], Field(discriminator="kind")]
    other: Cat | Dog


class Tuples(BaseModel):
    point: tuple[int, str]
    many: tuple[bool, ...] = Field(max_length=2)


class Bounds(BaseModel):
    small: int = Field(ge=3, le=12)
    fraction: float = Field(gt=0.5, lt=2)
    fives: int = Field(multiple_of=5, ge=0, le=100)
    few: list[int] = Field(min_length=1, max_length=3)
    letters: str = Field(pattern="^[a-z]{2,3}$")
    short: str = Field(min_length=2, max_length=5)


class Formats(BaseModel):
    on: datetime.date
    id: uuid.UUID
    at: ipaddress.IPv4Address


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Node(BaseModel):
    """Refers to itself."""

    color: Color = Field(description="A colour", examples=["red"], title="Colour")
    children: list["Node"] = Field(max_length=1)


class Empty(BaseModel):
    pass


class Large(BaseModel):
    one: Literal[12345678901234568, 9007199254740992]
    range: int = Field(ge=2**62, le=2**63 - 1)
    from_on: int = Field(ge=10**17)


class Unique(BaseModel):
    items: set[int]


MODELS = [Owner, Tuples, Bounds, Formats, Node, Empty, Large]
# With what the error names.
REFUSED_MODELS = [(Unique, "uniqueItems")]

KIND = {"type": "object", "required": ["k"], "additionalProperties": False}
SCHEMAS = [
    {"type": "object", "properties": {}},
    {"type": "object", "properties": {"a": {"type": "object", "properties": {}}}, "required": ["a"]},
    {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "minItems": 2, "maxItems": 2},
    {"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "null"}, "maxItems": 4},
    {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 2, "maxItems": 2},
    {"const": [12345678901234568, -1.5, {"a": None}]},
    {"type": "integer", "minimum": 10**17},
    {"type": "integer", "minimum": 2**53 + 1, "maximum": 2**53 + 3},
    {"type": "integer", "minimum": -5, "maximum": 5},
    {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 6},
    {"type": "number", "minimum": -1, "maximum": 1},
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    {"type": "number", "multipleOf": 0.5},
    {"type": "integer", "multipleOf": 7, "maximum": 100},
    {"type": ["integer", "null"], "minimum": 5},
    {"type": ["string", "integer"], "minLength": 2, "maximum": 9},
    {"type": "string", "pattern": "^\\d{3}-\\d{4}$"},
    {"type": "string", "pattern": "b+", "maxLength": 9},
    {"type": "string", "pattern": "^(a|bc)*$", "minLength": 3, "maxLength": 9},
    *({"type": "string", "format": name} for name in ["date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"]),
    {"type": "object", "minProperties": 1, "maxProperties": 2, "additionalProperties": {"type": "integer"}},
    {"type": "object", "patternProperties": {"^x_[a-z]{2}$": {"type": "integer"}}, "additionalProperties": False},
    {"oneOf": [{**KIND, "properties": {"k": {"const": "a"}}}, {**KIND, "properties": {"k": {"const": "b"}}}]},
    {"oneOf": [{"type": "string"}, {"type": "integer"}]},
    {"allOf": [{"properties": {"a": {"type": "null"}}, "required": ["a"]}, {"properties": {"b": {}}, "required": ["b"]}]},
]
REFUSED = [
    ({"const": 2**53 + 1}, str(2**53 + 1)),
    ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, "oneOf"),
    ({"type": "string", "pattern": "^(?!x)"}, "look-ahead"),
    ({"type": "string", "format": "iri"}, "iri"),
    ({"not": {"type": "null"}}, "not"),
]


def check_schemas(work, server):
    run = chat_run(work)
    with server(str(run)) as running:
        url = running.url
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)

        def ask(path, body):
            request = urllib.request.Request(url + path, json.dumps(body).encode())
            with urllib.request.urlopen(request) as response:
                return json.load(response)

        # Ends of strings, lists and objects are likelier, or few would end.
        ends = [ask("/tokenize", {"content": text})["tokens"][0] for text in '"]}']
        bias = {str(token): 4 for token in ends}
        settings = {"model": run.name, "extra_body": {"logit_bias": bias}}

        def parsed(model):
            for seed in range(4):
                try:
                    answer = client.chat.completions.parse(
                        messages=QUESTION, response_format=model, max_tokens=900, seed=seed, **settings
                    )
                except openai.LengthFinishReasonError:
                    continue
                assert isinstance(answer.choices[0].message.parsed, model), answer
            if model in (Empty, Large):  # they have no strings, which hardly end without a bias
                answer = client.responses.parse(model=run.name, input="Who?", text_format=model, max_output_tokens=900)
                assert isinstance(answer.output_parsed, model), answer

        def valid(schema):
            form = {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}
            for seed in range(4):
                body = {"prompt": "x", "max_tokens": 400, "seed": seed, "logit_bias": bias, "response_format": form}
                choice = ask("/v1/completions", body)["choices"][0]
                if choice["finish_reason"] == "stop":
                    jsonschema.validate(json.loads(choice["text"]), schema, format_checker=jsonschema.FormatChecker())
                    if schema == SCHEMAS[0]:
                        assert json.loads(choice["text"]) == {}, choice

        def refused(schema, part):
            try:
                if isinstance(schema, type):
                    parsed(schema)
                else:
                    valid(schema)
            except (openai.BadRequestError, urllib.error.HTTPError) as error:
                message = error.read().decode() if isinstance(error, urllib.error.HTTPError) else str(error)
                assert part in message, message
                return
            raise AssertionError("it is taken")

        checks = Checks("schemas of pydantic")
        for model in MODELS:
            checks(model.__name__, lambda model=model: parsed(model))
        for model, part in REFUSED_MODELS:
            checks(f"{model.__name__} is refused", lambda model=model, part=part: refused(model, part))
        other = Checks("keywords of schemas")
        for schema in SCHEMAS:
            other(json.dumps(schema), lambda schema=schema: valid(schema))
        for schema, part in REFUSED:
            other(f"{json.dumps(schema)} is refused", lambda schema=schema, part=part: refused(schema, part))
        ended = [checks.end(), other.end()]
    assert all(ended), "a schema fails"
