"""The endpoints: HTTP around the service, and the page. Nothing here loads anything from outside."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from importlib import resources
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from bnce import files
from bnce.errors import UserError
from bnce.use.model import Model
from bnce.use.serve.batching import Batcher
from bnce.use.serve.guard import FAILED, Application, Guard
from bnce.use.serve.limits import Limits, RefusedError
from bnce.use.serve.messages import (
    ErrorAnswer,
    HealthAnswer,
    NextAnswer,
    NextRequest,
    RescoreAnswer,
    RescoreRequest,
    ScoreAnswer,
    ScoreRequest,
)
from bnce.use.serve.metrics import CONTENT_TYPE, Metrics
from bnce.use.serve.questions import Answerer
from bnce.use.serve.service import Service
from bnce.version import __version__

PAGE_FILES = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/docs": ("docs.html", "text/html"),
    "/docs.js": ("docs.js", "text/javascript"),
}
_ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorAnswer, "description": "The body is not UTF-8 or not JSON."},
    408: {"model": ErrorAnswer, "description": "The body came too slowly."},
    413: {"model": ErrorAnswer, "description": "Too many bytes, sentences, hypotheses or words."},
    415: {"model": ErrorAnswer, "description": "The body is not called JSON."},
    422: {"model": ErrorAnswer, "description": "A field is wrong."},
    503: {"model": ErrorAnswer, "description": "Too many requests at a time; see Retry-After."},
    504: {"model": ErrorAnswer, "description": "The answer took too long."},
}


def make_app(
    model: Model,
    run: str = "",
    limits: Limits | None = None,
    metrics: Metrics | None = None,
    *,
    max_batch_words: int = 4096,
    max_wait_seconds: float = 0.003,
) -> Application:
    """Make the ASGI application that serves a model."""
    limits, metrics = limits or Limits(), metrics or Metrics()
    batcher = Batcher(
        Answerer(model).answer,
        metrics,
        max_batch_words=max_batch_words,
        max_wait_seconds=max_wait_seconds,
        max_waiting=limits.max_waiting,
        max_waiting_words=limits.max_waiting_words,
    )
    service = Service(model, run, limits, batcher, metrics)

    @asynccontextmanager
    async def live(app: FastAPI) -> AsyncIterator[None]:
        await batcher.start()
        yield
        await batcher.stop()

    # The usual documentation page loads its scripts from elsewhere: /docs is a page of ours.
    app = FastAPI(title="bnce", version=__version__, docs_url=None, redoc_url=None, lifespan=live)
    _add_endpoints(app, service)
    _add_pages(app)
    _add_refusals(app)
    endpoints = {route.path for route in app.routes if hasattr(route, "path")}
    return Guard(app, endpoints, limits, metrics)


def _add_endpoints(app: FastAPI, service: Service) -> None:
    def documented(model: type[Any]) -> dict[int | str, dict[str, Any]]:
        return {200: {"model": model}, **_ERRORS}

    @app.post("/score", responses=documented(ScoreAnswer))
    async def score(request: ScoreRequest) -> Response:
        """Score sentences: log10 probabilities of every word, unknown words, totals and perplexities."""
        return _json(await service.score(request))

    @app.post("/rescore", responses=documented(RescoreAnswer))
    async def rescore(request: RescoreRequest) -> Response:
        """Score the hypotheses of utterances anew, and find the best of each."""
        return _json(await service.rescore(request))

    @app.post("/next", responses=documented(NextAnswer))
    async def next_words(request: NextRequest) -> Response:
        """Find the likeliest words after a prompt."""
        return _json(await service.next_words(request))

    @app.get("/next", responses=documented(NextAnswer))
    async def next_words_of_query(
        prompt: str = "", k: Annotated[int, Query(ge=1)] = 10, normalised: bool = True
    ) -> Response:
        """Find the likeliest words after a prompt."""
        return _json(await service.next_words(NextRequest(prompt=prompt, k=k, normalised=normalised)))

    @app.get("/healthz", responses={200: {"model": HealthAnswer}})
    async def health() -> Response:
        """Say that the server is up, and what it serves."""
        return _json(service.health())

    @app.get("/metrics")
    async def metrics() -> Response:
        """Give counts in Prometheus' text format."""
        return Response(service.metrics.render(service.batcher.num_waiting), headers={"content-type": CONTENT_TYPE})


def _add_pages(app: FastAPI) -> None:
    directory = resources.files("bnce.use.serve") / "page"
    for path, (name, kind) in PAGE_FILES.items():
        app.add_route(path, _page((directory / name).read_bytes(), kind), methods=["GET"])


def _page(content: bytes, kind: str) -> Callable[[Request], Awaitable[Response]]:
    async def page(request: Request) -> Response:
        return Response(content, media_type=kind)

    return page


def _add_refusals(app: FastAPI) -> None:
    """Answer whatever goes wrong with one sentence."""

    @app.exception_handler(RefusedError)
    async def refused(request: Request, error: RefusedError) -> Response:
        headers = {} if error.retry_seconds is None else {"retry-after": str(error.retry_seconds)}
        return _refusal(error.status, error.sentence, headers)

    @app.exception_handler(UserError)
    async def bad_input(request: Request, error: UserError) -> Response:
        return _refusal(422, str(error))

    @app.exception_handler(RequestValidationError)
    async def wrong_field(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            reason = first.get("ctx", {}).get("error", "it cannot be read")
            return _refusal(400, f"The body is not JSON: {reason} at character {first['loc'][-1]}.")
        place = ".".join(str(part) for part in first["loc"][1:]) or "the body"
        return _refusal(422, f"{place}: {first['msg']}; /docs says what is allowed.")

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        # The guard hears of it, too, and logs it.
        return _refusal(500, FAILED)

    @app.exception_handler(HTTPException)
    async def not_here(request: Request, error: HTTPException) -> Response:
        sentences = {
            400: "The body is not JSON that can be read.",
            404: f"There is nothing at '{request.url.path}': /docs lists what there is.",
            405: f"'{request.url.path}' does not take {request.method}: /docs lists what it takes.",
        }
        return _refusal(error.status_code, sentences.get(error.status_code, error.detail), error.headers)


def _json(text: str) -> Response:
    return Response(text, media_type="application/json")


def _refusal(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> Response:
    return Response(files.to_json({"detail": sentence}), status, headers, "application/json")
