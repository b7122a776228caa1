"""The endpoints: requests cut into words, put to the model in batches, and written up; and the page.

Nothing here loads anything from outside.
"""

from __future__ import annotations

import functools
import math
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib import resources
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, ProcessCollector, generate_latest
from starlette.exceptions import HTTPException

from bnce.engine.network import Mode
from bnce.errors import UserError
from bnce.scoring.model import Model
from bnce.scoring.results import LN_10, ScoredSentence, Totals
from bnce.scoring.weights import NAMES, Weights, count_words
from bnce.serve.batcher import Batcher, Kind, Question
from bnce.serve.guard import Guard
from bnce.serve.messages import NextRequest, RescoreRequest, ScoreRequest, Utterance
from bnce.version import __version__

PAGE = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
# What needs no token: the program, which is no secret, and that it runs.
OPEN_PATHS = {*PAGE, "/openapi.json", "/health"}


def make_app(
    model: Model,
    run: str = "",
    names: Collection[str] = (),
    token: str | None = None,
    ready: Callable[[], None] = lambda: None,
) -> FastAPI:
    """Make the ASGI application that serves a model to requests that call this machine by one of its names."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    num_words = Counter("bnce_words", "Words of answered requests, including sentence ends.", registry=registry)
    batcher = Batcher(lambda kind, texts: _ask(model, kind, texts), registry)

    spells = True
    try:
        model.refuse_spelling()
    except UserError:
        spells = False

    @asynccontextmanager
    async def live(app: FastAPI) -> AsyncIterator[None]:
        async with batcher.running():
            ready()
            yield

    # The usual documentation page loads its scripts from elsewhere.
    app = FastAPI(title="bnce", version=__version__, docs_url=None, redoc_url=None, lifespan=live)
    app.add_middleware(Guard, names=names, token=token, open_paths=OPEN_PATHS, registry=registry)

    async def ask(questions: list[Question]) -> list[Any]:
        answers = await batcher.ask(questions)
        num_words.inc(sum(len(words) + 1 for question in questions for words in question.texts))
        return answers

    @app.post("/score")
    async def score(asked: ScoreRequest) -> Response:
        """Score sentences: log10 probabilities of every word, unknown words, totals and perplexities."""
        mode = _choose_mode(model, asked.mode)
        if asked.spell:
            model.refuse_spelling()
        sources, cut = _cut(model, asked)
        kind = Kind("both modes" if asked.exact and mode == "unnormalised" else "sentences", mode, asked.spell)
        scores = await ask([Question(kind, [words]) for words in cut])
        if kind.what == "sentences":
            return _json(_scored(mode, model.log_z, sources, scores))
        return _json(_scored_exactly(model.log_z, sources, scores))

    @app.post("/rescore")
    async def rescore(asked: RescoreRequest) -> Response:
        """Rescore the hypotheses of utterances, and find the best one of each utterance."""
        mode = _choose_mode(model, asked.mode)
        kind, lists = Kind("hypotheses", mode), ([each.text for each in one.hypotheses] for one in asked.utterances)
        scores = iter(await ask([Question(kind, list(map(model.words, texts))) for texts in lists]))
        weights = Weights(**{name: getattr(asked, name) for name in NAMES})
        return _json({"mode": mode, "utterances": [_rescored(weights, each, scores) for each in asked.utterances]})

    @app.post("/next")
    async def next_words(asked: NextRequest) -> Response:
        """Find the most likely words after a prompt."""
        mode, words = _choose_mode(model, asked.mode), model.words(asked.prompt)
        (found,) = await ask([Question(Kind("next", mode, num_next=asked.k), [words])])
        likeliest = [{"word": one.word, "prob": one.prob, "log10_prob": one.log_prob / LN_10} for one in found]
        return _json({"mode": mode, "words": words, "next": likeliest})

    @app.head("/health", include_in_schema=False)
    @app.get("/health")
    async def health(request: Request) -> Response:
        """Say that the server is up and what it serves. If a token is set, requests without it get only the status."""
        if not request.scope["trusted"]:
            return _json({"status": "ok"})
        names = ("kind", "vocab_size", "self_normalised", "log_z", "device")
        return _json({"status": "ok", "run": run, **{name: getattr(model, name) for name in names}, "spells": spells})

    @app.get("/metrics")
    async def metrics() -> Response:
        """Give counts in Prometheus' text format."""
        return Response(generate_latest(registry), headers={"content-type": CONTENT_TYPE_LATEST})

    directory = resources.files("bnce.serve") / "page"
    for path, (name, kind) in PAGE.items():
        page = Response((directory / name).read_bytes(), media_type=kind)
        app.api_route(path, methods=["GET", "HEAD"], include_in_schema=False)(functools.partial(_give, page))
    app.add_exception_handler(UserError, lambda request, error: _json({"detail": str(error)}, 422))
    app.add_exception_handler(RequestValidationError, _wrong_field)
    app.add_exception_handler(
        Exception, lambda request, error: _json({"detail": "The server failed; see its log."}, 500)
    )
    return app


async def _give(page: Response) -> Response:
    return page


def _ask(model: Model, kind: Kind, texts: list[list[str]]) -> Sequence[Any]:
    if kind.what == "next":
        return model.next_words_after(texts, kind.num_next, mode=kind.mode)
    if kind.what == "both modes":
        exact = model.score_words(texts, mode="normalised", spell=kind.spell)
        if model.log_z is None or exact.log_z_N is None:  # a mixture has several constants
            return list(zip(model.score_words(texts, mode=kind.mode, spell=kind.spell), exact, strict=True))
        # Both kinds of probability have the same score above them.
        plain = replace(exact, log_prob_N=exact.log_prob_N + exact.log_z_N - model.log_z)
        return list(zip(plain, exact, strict=True))
    return list(model.score_words(texts, mode=kind.mode, spell=kind.spell, share=kind.what == "hypotheses"))


def _choose_mode(model: Model, mode: Mode | None) -> Mode:
    """Take the constant Z where the model has one; refuse it, in the words of a request, where it has none."""
    if mode == "unnormalised" and not model.self_normalised:
        raise HTTPException(
            422, 'The model was trained with the softmax and has no constant Z: send "mode": "normalised".'
        )
    return model.choose_mode(mode)


def _cut(model: Model, asked: ScoreRequest) -> tuple[list[int], list[list[str]]]:
    """Cut a request's texts into sentences of words; beside each, which text it comes from."""
    if (asked.sentences is None) == (asked.texts is None):
        raise HTTPException(422, "Give either 'sentences' (each string one sentence) or 'texts' (cut into sentences).")
    if asked.sentences is not None:
        return list(range(len(asked.sentences))), list(map(model.words, asked.sentences))
    lines = ((number, line) for number, text in enumerate(asked.texts or ()) for line in text.splitlines())
    cut = [(number, words) for number, line in lines for words in model.normaliser(line)]
    return [number for number, _ in cut], [words for _, words in cut]


def _scored(mode: Mode, log_z: float | None, sources: list[int], scored: list[ScoredSentence]) -> dict[str, Any]:
    """Write up sentences, each with the text that it comes from."""
    sentences = [{"text": number, **each.to_dict()} for number, each in zip(sources, scored, strict=True)]
    constant = log_z if mode == "unnormalised" else None
    totals = Totals.of(scored).to_dict()
    return {"mode": mode, "log_base": 10, "log_z": constant, "sentences": sentences, "totals": totals}


def _scored_exactly(
    log_z: float | None,
    sources: list[int],
    scores: list[tuple[ScoredSentence, ScoredSentence]],
) -> dict[str, Any]:
    """Write up sentences with the constant Z, and beside it what the softmax says."""
    answer = _scored("unnormalised", log_z, sources, [plain for plain, _ in scores])
    exact = _scored("normalised", None, sources, [exact for _, exact in scores])
    values: list[float] = []
    for sentence, truth, (plain, softmax) in zip(answer["sentences"], exact["sentences"], scores, strict=True):
        sentence["exact_log10_probs"], sentence["exact_log10_prob"] = truth["log10_probs"], truth["log10_prob"]
        if log_z is not None:
            sentence["log_z"] = (log_z + (plain.log_probs - softmax.log_probs)).tolist()
            values += sentence["log_z"]
    answer["exact_totals"] = exact["totals"]
    answer["log_z_mean"] = sum(values) / len(values) if values else None
    return answer


def _rescored(weights: Weights, utterance: Utterance, scores: Iterator[ScoredSentence]) -> dict[str, Any]:
    """Write up an utterance with the next of the scores."""
    hypotheses: list[dict[str, Any]] = []
    for place, given in enumerate(utterance.hypotheses, 1):
        score = next(scores)
        new_lm, num_words, num_oov = float(score.log_probs.sum()), count_words(given.text), int(score.oov.sum())
        total = weights.total(given.am, given.lm, new_lm, num_words, num_oov, math.log(place))
        if not math.isfinite(total):
            raise HTTPException(422, f"A total of the utterance '{utterance.id}' is {total}: send smaller weights.")
        counted = {"new_lm": new_lm, "num_words": num_words, "num_oov": num_oov, "total": total}
        hypotheses.append({"text": given.text, "am": given.am, "lm": given.lm, **counted})
    totals = [hypothesis["total"] for hypothesis in hypotheses]
    return {"id": utterance.id, "best": totals.index(max(totals)), "hypotheses": hypotheses}


async def _wrong_field(request: Request, error: Any) -> Response:
    """Say in one sentence what pydantic says of a body."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return _json({"detail": f"The body is not JSON: {first['ctx']['error']} at character {first['loc'][-1]}."}, 400)
    # Names of fields come from the client; half a surrogate pair, which JSON can spell, cannot be written back.
    place = ".".join(map(str, first["loc"][1:])).encode("utf-8", "replace").decode()[:100] or "the body"
    told = (
        "there is no such field" if first["type"] == "extra_forbidden" else first["msg"].removeprefix("Value error, ")
    )
    return _json({"detail": f"{place}: {told}; see /openapi.json."}, 413 if first["type"] == "too_long" else 422)


def _json(record: Any, status: int = 200) -> Response:
    # What is not finite becomes null.
    return Response(msgspec.json.encode(record), status, media_type="application/json")
