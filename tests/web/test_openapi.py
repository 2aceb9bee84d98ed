"""The OpenAPI document and the page made from it: true to the code, and readable without a network."""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from html.parser import HTMLParser
from typing import Any, get_args

import pytest
import schemathesis
from fastapi.routing import APIRoute
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from arithmetic import check_arithmetic
from fakes.asgi import KEY, app_for, http, scene
from fakes.engine import FakeEngine
from jev_local.core.readout import StepReading, warnings
from jev_local.core.sharing import Mode, Strategy
from jev_local.engine.decision import STAGES, CacheReport, PrefixSource
from jev_local.settings import ASSETS_BODY_LIMIT, BODY_LIMIT, FORM_LIMIT, MAX_IMAGES, MIB, ApiSettings
from jev_local.web.examples import REPLY
from jev_local.web.openapi import document
from jev_local.wire import about, schema
from jev_local.wire.attached import MAX_PLACES
from jev_local.wire.headers import DIAGNOSTICS, PREFIX_SOURCE, REQUEST_ID, STRATEGY, TIMING, WARNINGS
from jev_local.wire.intake import read_request
from jev_local.wire.multipart import Part

DOCUMENT = document("0.0.0")


def media_types(part: Any) -> list[dict[str, Any]]:
    """Every schema with an example, wherever it stands."""
    if isinstance(part, list):
        return [found for inner in part for found in media_types(inner)]
    if not isinstance(part, dict):
        return []
    here = [part] if "schema" in part and "example" in part else []
    return here + [found for inner in part.values() for found in media_types(inner)]


def test_every_example_fits_its_schema() -> None:
    found = media_types(DOCUMENT["paths"])
    assert len(found) > 15
    for media in found:
        if "$ref" in media["schema"]:
            name = media["schema"]["$ref"].rpartition("/")[2]
            model = getattr(schema, name, None) or getattr(about, name)
            read = model.model_validate(media["example"])
            # Everything in the example is a field of the model, and nothing was left out.
            assert read.model_dump(exclude_unset=True) == media["example"]
            assert not read.model_extra or model.__name__ == "InvalidBodyReply"


def test_the_example_request_is_answered() -> None:
    example = DOCUMENT["paths"]["/v1/systemone"]["post"]["requestBody"]["content"]["application/json"]["example"]
    assert len(read_request(json.dumps(example).encode()).questions) == 3


def test_the_example_form_is_answered() -> None:
    form = DOCUMENT["paths"]["/v1/systemone"]["post"]["requestBody"]["content"]["multipart/form-data"]["example"]
    parts = {name: Part(content.encode()) for name, content in form.items() if name != "request"}
    intake = read_request(json.dumps(form["request"]).encode(), parts=parts)
    assert len(intake.uploads.placed) == len(parts) == 1


def test_images_are_in_the_document_with_their_bounds() -> None:
    fields = DOCUMENT["components"]["schemas"]["SystemOneRequest"]["properties"]
    images, assets = (fields[name]["anyOf"][0] for name in ("images", "assets"))
    assert (images["type"], images["maxItems"]) == ("array", MAX_IMAGES)
    assert assets["additionalProperties"] == {"$ref": "#/components/schemas/Asset"}
    assert (assets["minProperties"], assets["maxProperties"]) == (1, MAX_PLACES)
    told = json.dumps(DOCUMENT["paths"]["/v1/systemone"]["post"], ensure_ascii=False)
    millions = ApiSettings().max_image_pixels // 1_000_000
    words = (f"{BODY_LIMIT // MIB} MiB", f"{ASSETS_BODY_LIMIT // MIB} MiB", f"{FORM_LIMIT // MIB} MiB")
    for word in (*words, f"{MAX_PLACES} places", f"{millions} million pixels", "ever fetched", "image_url"):
        assert word in told


def test_all_that_is_documented_is_served_and_the_other_way_round() -> None:
    served = {
        (route.path, method.lower())
        for route in app_for(FakeEngine()).routes
        if isinstance(route, APIRoute)
        for method in route.methods
    }
    documented = {(path, method) for path, operations in DOCUMENT["paths"].items() for method in operations}
    # Pages about the document are not in it, and HEAD is told in words: OpenAPI would want all of GET once more.
    assert served - documented == {("/openapi.json", "get"), ("/docs", "get"), ("/health", "head"), ("/ready", "head")}
    assert documented <= served


def test_every_response_documents_its_id_and_the_200_its_diagnostics() -> None:
    for operations in DOCUMENT["paths"].values():
        for operation in operations.values():
            assert all(REQUEST_ID in response["headers"] for response in operation["responses"].values())
    told = DOCUMENT["paths"]["/v1/systemone"]["post"]["responses"]["200"]["headers"]
    assert set(told) == {REQUEST_ID, *DIAGNOSTICS}


def test_every_code_of_a_warning_is_explained() -> None:
    codes = warnings(StepReading((1.0,), mass=0.0, rival=7), thought={7})
    assert len(codes) > 1
    answers = [DOCUMENT["components"]["schemas"][f"{kind}Reply"] for kind in ("Noul", "Choice", "Score")]
    texts = [answer["properties"]["x_warnings"]["description"] for answer in answers]
    texts.append(DOCUMENT["paths"]["/v1/systemone"]["post"]["responses"]["200"]["headers"][WARNINGS]["description"])
    assert [code for code in codes for text in texts if code not in text] == []


def test_every_word_of_the_diagnostics_is_explained() -> None:
    told = DOCUMENT["paths"]["/v1/systemone"]["post"]["responses"]["200"]["headers"]
    for name, words in ((PREFIX_SOURCE, get_args(PrefixSource)), (STRATEGY, get_args(Strategy)), (TIMING, STAGES)):
        assert [word for word in words if word not in told[name]["description"]] == []


def test_the_cache_is_in_the_document_with_its_key_and_its_schemas() -> None:
    operations = DOCUMENT["paths"]["/v1/cache"]
    assert list(operations) == ["get", "delete"]
    for operation, name in ((operations["get"], "CacheReply"), (operations["delete"], "ClearedReply")):
        assert operation["security"] == DOCUMENT["paths"]["/v1/systemone"]["post"]["security"]
        assert set(operation["responses"]) == {"200", "401", "403", "500"}
        content = operation["responses"]["200"]["content"]["application/json"]
        assert content["schema"] == {"$ref": f"#/components/schemas/{name}"}
        fields = DOCUMENT["components"]["schemas"][name]
        assert list(content["example"]) == list(fields["properties"]) == fields["required"]
        assert all(field["description"] for field in fields["properties"].values())
    assert list(DOCUMENT["components"]["schemas"]["CacheReply"]["properties"]) == [
        field.name for field in dataclasses.fields(CacheReport)
    ]


def test_the_document_knows_how_ready_tells_of_reuse() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    assert schemas["ReadyReply"]["properties"]["state_cache"] == {"$ref": "#/components/schemas/StateCacheReply"}
    told, strategy = schemas["StateCacheReply"], schemas["StrategyReply"]
    assert list(told["properties"]) == ["mode", "sharing", "reason", "strategies"]
    assert told["properties"]["mode"]["enum"] == list(get_args(Mode))
    assert told["properties"]["strategies"]["items"] == {"$ref": "#/components/schemas/StrategyReply"}
    assert "required" not in told, "nothing is in it before the inference server was looked at"
    assert strategy["required"] == ["name", "exact", "ms"]
    assert strategy["properties"]["name"]["enum"] == list(get_args(Strategy))
    assert {"type": "null"} in strategy["properties"]["ms"]["anyOf"]


def test_the_examples_numbers_are_the_formulas() -> None:
    check_arithmetic(REPLY)


def test_no_reference_leads_nowhere() -> None:
    names = re.findall(r'"#/components/schemas/(\w+)"', json.dumps(DOCUMENT))
    assert set(names) <= set(DOCUMENT["components"]["schemas"])


@scene
async def test_openapi_json() -> None:
    async with http(app_for(FakeEngine()), key=None) as client:
        response = await client.get("/openapi.json")
    assert response.json()["paths"] == DOCUMENT["paths"]


class Page(HTMLParser):
    """Collects tags, links to places in the page, and ids; complains about tags that do not match."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag != "meta":
            self._open.append(tag)
        for name, value in attrs:
            {"src": self.loads, "href": self.links, "id": self.ids}.get(name, []).append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag


@scene
async def test_the_page_needs_no_network_and_runs_nothing() -> None:
    async with http(app_for(FakeEngine()), key=None) as client:
        response = await client.get("/docs")
    page = Page()
    page.feed(response.text)
    assert page.tags[:2] == ["html", "head"]
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert page.loads == []
    assert {link for link in page.links if not link.startswith("#")} == {"/openapi.json"}
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)
    words = ("POST /v1/systemone", "GET /v1/cache", "DELETE /v1/cache", "X-Jev-Local-Warnings", "X-Jev-Local-Strategy")
    for word in (
        *words,
        "SystemOneRequest",
        "CacheReply",
        "evictions",
        "cracked shade",
        "529",
        "multipart/form-data",
        "Asset",
    ):
        assert word in response.text
    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert response.headers["x-content-type-options"] == "nosniff"


CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


def generated(mode: Any) -> Any:
    """The document as schemathesis reads it from the running app."""
    # Its Host header is a name of its own, which a server on loopback would refuse.
    loaded = schemathesis.openapi.from_asgi("/openapi.json", app_for(FakeEngine(), host="0.0.0.0"))
    loaded.config.generation.update(modes=[mode])
    return loaded


@pytest.mark.parametrize(
    ("mode", "statuses"),
    [
        # A name of a model, and a noul that asks nothing, are refused although the schema has nothing against them.
        (schemathesis.GenerationMode.POSITIVE, {200, 400, 422}),
        (schemathesis.GenerationMode.NEGATIVE, {200, 400, 415, 422}),
    ],
    ids=["sound", "broken"],
)
def test_generated_requests(mode: schemathesis.GenerationMode, statuses: set[int]) -> None:
    """250 requests that fit the document and 250 that do not: no 5xx, and nothing that is not documented."""
    operation = generated(mode)["/v1/systemone"]["POST"]
    seen: Counter[int] = Counter()

    @settings(max_examples=250, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        response = case.call(headers={"X-API-Key": KEY})
        case.validate_response(response, checks=CHECKS)
        seen[response.status_code] += 1

    ask()
    assert seen.total() >= 250
    assert set(seen) <= statuses, seen
    assert seen[200 if mode is schemathesis.GenerationMode.POSITIVE else 422] > 20, seen
