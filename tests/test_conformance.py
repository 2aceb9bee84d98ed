"""Programs that other people wrote for this API, against the app over a real socket and a fake engine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typesafe_sdk as sdk
from systemone import Choice, Client, Noul, Score, SystemOneError

from fakes.asgi import KEY, app_for
from fakes.engine import FakeEngine
from fakes.served import served
from image_files import image_file
from jev_local import errors
from jev_local.core import questions as core
from jev_local.core.pictures import Picture
from jevcompat_run import check_conformant

LONG = "二重に請求されました。" * 500
NOUL: dict[str, Any] = {"type": "noul", "instructions": "Refund?"}
QUESTIONS: dict[str, Any] = {
    "refund": {**NOUL, "criteria": {"true": LONG}},
    "team": {"type": "choice", "criteria": {"billing": None, "tech": {"when": "it is broken"}}},
    "anger": {"type": "score", "criteria": ["calm", {"level": "furious"}]},
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(lambda: app_for(FakeEngine())) as running:
        yield running


@pytest.mark.parametrize("key", ["", KEY], ids=["open", "with a key"])
def test_jevcompat(tmp_path: Path, key: str) -> None:
    with served(lambda: app_for(FakeEngine(), key=key)) as url:
        check_conformant(url, tmp_path, key=key, seconds=120)


def options(url: str) -> dict[str, Any]:
    return {"base_url": url, "api_key": KEY, "timeout": 30, "retry": sdk.RetryPolicy(max_retries=0)}


def check_answered(response: sdk.SystemOneResponse) -> None:
    assert response.model == "fake-1b"
    assert set(response.answers) == set(QUESTIONS)
    assert 0 <= response.nouls["refund"].noul <= 1
    assert sum(response.choices["team"].probabilities.values()) == pytest.approx(1, abs=1e-12)
    assert response.scores["anger"].legend == {0: "calm", 1: {"level": "furious"}}
    assert response.usage.output_tokens == 3
    assert response.request_id is not None
    assert response.request_id.startswith("req_")


@pytest.mark.parametrize("compression", ["zstd", False])
def test_the_official_sdk(url: str, compression: Any) -> None:
    with sdk.TypeSafeClient(**options(url), compression=compression) as client:
        check_answered(client.system_one(state={"text": LONG}, questions=QUESTIONS))
        assert [model.name for model in client.models.list().models] == ["fake-1b", "jev-latest"]


@pytest.mark.parametrize("compression", ["zstd", False])
def test_the_official_sdk_async(url: str, compression: Any) -> None:
    async def ask() -> None:
        async with sdk.AsyncTypeSafeClient(**options(url), compression=compression) as client:
            check_answered(await client.system_one(state=[LONG], questions=QUESTIONS))
            assert len((await client.models.list()).models) == 2

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("change", "expected", "words"),
    [
        ({"model": "gpt-x"}, sdk.TypeSafeBadRequestError, "Unknown model: gpt-x"),
        ({"questions": {"q": {"type": "boolean"}}}, sdk.TypeSafeUnprocessableEntityError, "noul, choice or score"),
        ({"questions": {"b": {"type": "box", "instructions": "?"}}}, sdk.TypeSafeBadRequestError, "box"),
        ({"extra_body": {"images": ["data:image/png;base64,AA=="]}}, sdk.TypeSafeUnprocessableEntityError, "images.0"),
    ],
)
def test_the_sdk_understands_our_refusals(url: str, change: Any, expected: type[Exception], words: str) -> None:
    asked: dict[str, Any] = {"state": "s", "questions": {"q": NOUL}, **change}
    with sdk.TypeSafeClient(**options(url)) as client, pytest.raises(expected, match=words) as raised:
        client.system_one(**asked)
    assert isinstance(raised.value, sdk.TypeSafeAPIError)
    assert raised.value.request_id is not None


@pytest.mark.parametrize("compression", ["zstd", False])
def test_images_of_the_official_sdk(compression: Any) -> None:
    engine = FakeEngine()
    png, jpeg = (image_file(color=color, format_=format_) for color, format_ in (("red", "PNG"), ("blue", "JPEG")))
    lamp, stamp = sdk.Image(png), sdk.Image(jpeg)
    with (
        served(lambda: app_for(engine)) as url,
        sdk.TypeSafeClient(**options(url), compression=compression) as client,
    ):
        client.system_one(
            state={"photo": lamp, "text": LONG},
            questions={"q": {"type": "noul", "instructions": f"Is <the other> like {lamp}?"}},
            assets={"<the other>": stamp},
        )
        with pytest.raises(sdk.TypeSafeBadRequestError, match="mentioned nowhere"):
            client.system_one(state="s", questions={"q": NOUL}, assets={"<the other>": stamp})
        with pytest.raises(sdk.TypeSafeUnprocessableEntityError, match=r"assets\.0: is damaged"):
            client.system_one(state={"photo": sdk.Image(png[:-30])}, questions={"q": NOUL})
    ((state, (question,)),) = engine.calls
    (album,) = engine.albums
    assert isinstance(question, core.Noul)
    shown = [
        [part for part in album.split(text) if isinstance(part, Picture)]
        for text in (state, question.instructions or "")
    ]
    assert [[picture.data[:3] for picture in pictures] for pictures in shown] == [[png[:3]], [jpeg[:3], png[:3]]]
    assert shown[0][0].data == shown[1][1].data == png, "a JPEG is written anew, a PNG is not"
    assert album.leading == ()


@pytest.mark.parametrize(("key", "expected"), [("other", sdk.TypeSafeAuthenticationError)])
def test_the_sdk_with_another_key(url: str, key: str, expected: type[Exception]) -> None:
    with sdk.TypeSafeClient(**{**options(url), "api_key": key}) as client, pytest.raises(expected):
        client.models.list()


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.Busy("Full."), 529),
        (errors.BackendUnavailable("Nobody listens."), 503),
        (errors.BackendTimeout("Too slow."), 504),
        (errors.BackendFault("Nonsense."), 502),
        (ValueError("unforeseen"), 500),
    ],
)
def test_the_sdk_takes_faults_for_what_they_are(error: Exception, status: int) -> None:
    with (
        served(lambda: app_for(FakeEngine(error=error))) as url,
        sdk.TypeSafeClient(**options(url)) as client,
        pytest.raises(sdk.TypeSafeInternalServerError) as raised,
    ):
        client.system_one(state="s", questions={"q": NOUL})
    assert raised.value.status == status


def test_the_sdk_comes_back_after_as_long_as_it_was_told() -> None:
    class BusyOnce(FakeEngine):
        async def decide(self, **asked: Any) -> Any:
            try:
                return await super().decide(**asked)
            finally:
                self.error = None

    with (
        served(lambda: app_for(BusyOnce(error=errors.Busy("Full.", retry_after=0.01)))) as url,
        sdk.TypeSafeClient(**{**options(url), "retry": sdk.RetryPolicy(max_retries=1)}) as client,
    ):
        assert client.system_one(state="s", questions={"q": NOUL}).model == "fake-1b"


def test_systemone_client_without_a_model_name(url: str) -> None:
    with Client(url, KEY) as client:
        response = client.system_one(
            state=LONG,
            questions={
                "plain": Noul("OK?"),
                "worded": Noul("OK?", "It is fine."),
                "which": Choice("Which?", {"x": None, "y": "second"}),
                "how": Score("How?", ["bad", "good"]),
            },
        )
        assert set(response.nouls) == {"plain", "worded"}
        assert sum(response.choices["which"].probabilities.values()) == pytest.approx(1)
        assert response.scores["how"].legend == {"0": "bad", "1": "good"}
    with Client(url, "other") as client, pytest.raises(SystemOneError, match="401"):
        client.system_one(state="s", questions={"q": Noul("OK?")})
