"""`create_app`: the routes, what stands around them, and the engine's life. No logic is written here."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from jev_local import __version__
from jev_local.core.chats import CHAT_PATHS
from jev_local.engine.decision import Engine
from jev_local.errors import JevError
from jev_local.settings import ApiSettings
from jev_local.web import cache
from jev_local.web.chat import Chats
from jev_local.web.docs import docs_page
from jev_local.web.explain import Explain
from jev_local.web.frame import Frame
from jev_local.web.gate import HostGate, KeyGate
from jev_local.web.openapi import document
from jev_local.web.responses import json_response, on_jev_error
from jev_local.web.status import models, readiness
from jev_local.web.systemone import SystemOne
from jev_local.wire.bodies import BodyLimits


def create_app(*, engine: Engine, settings: ApiSettings, limits: BodyLimits | None = None) -> FastAPI:
    """The service in front of `engine`, which is started and stopped with it.

    `limits` is there for tests; the contract's own are the default.
    """
    started = datetime.now(UTC)
    openapi = document(__version__)
    docs = docs_page(openapi)
    systemone = SystemOne(engine=engine, settings=settings, limits=limits or BodyLimits())
    chats = Chats(engine=engine, settings=settings, limits=limits or BodyLimits())

    explain = Explain(engine=engine, limits=limits or BodyLimits())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await engine.start()
        try:
            yield
        finally:
            await engine.stop()

    # FastAPI's own pages load their scripts from a CDN, and its redirects would take the host from the request.
    app = FastAPI(lifespan=lifespan, openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    # The one added last stands outermost.
    app.add_middleware(KeyGate, key=settings.key)
    app.add_middleware(HostGate, host=settings.host)
    app.add_middleware(Frame, routes=app.routes)
    app.add_exception_handler(JevError, on_jev_error)

    @app.post("/v1/systemone")
    async def ask(request: Request) -> Response:
        return await systemone.answer(request)

    @app.post(CHAT_PATHS["chat"])
    async def chat(request: Request) -> Response:
        return await chats.answer(request, "chat")

    @app.post(CHAT_PATHS["text"])
    async def complete(request: Request) -> Response:
        return await chats.answer(request, "text")

    @app.get("/v1/models")
    async def list_models() -> Response:
        return json_response(models(engine.status(), started))

    @app.api_route("/v1/cache", methods=list(cache.METHODS))
    async def saved_states(request: Request) -> Response:
        return await cache.answer(request, engine)

    @app.post("/v1/cache/explain")
    async def explain_cache(request: Request) -> Response:
        return await explain.answer(request)

    # HEAD is what some load balancers send; the server leaves the body out.
    @app.api_route("/health", methods=["GET", "HEAD"])
    async def health() -> Response:
        return json_response({"status": "ok"})

    @app.api_route("/ready", methods=["GET", "HEAD"])
    async def ready() -> Response:
        status, body, headers = readiness(engine.status())
        return json_response(body, status=status, headers=headers)

    @app.get("/openapi.json")
    async def openapi_json() -> Response:
        return json_response(openapi)

    @app.get("/docs")
    async def docs_html() -> Response:
        return docs()

    app.openapi_schema = openapi
    return app
