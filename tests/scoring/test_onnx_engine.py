"""ONNX Runtime against PyTorch, through everything that asks an engine.

Legend: B rows, D hidden, K words, V vocabulary, N positions.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from export.exported_runs import MODELS, make_run
from small_corpus import END, VOCAB_SIZE, random_ids

from bnce import Sampling, Scorer
from bnce.export.to_onnx import export_onnx
from bnce.runs.model_file import load_model
from bnce.runs.packed_rows import pack_rows, unpack_rows
from bnce.scoring import onnx_engine
from bnce.scoring.batches import SentenceScorer
from bnce.scoring.engine import Engine
from bnce.scoring.entropy import EntropyScorer
from bnce.scoring.onnx_engine import OnnxEngine
from bnce.scoring.prefixes import score_prefixes
from bnce.scoring.sampling import generate
from bnce.scoring.torch_engine import TorchEngine

CLOSE = {"rtol": 0.0, "atol": 2e-5}  # float32 sums of numbers of the order of ten
CASES = [
    *((name, {}, "float32") for name in MODELS),
    *((name, {"num_layers": 2}, "float32") for name in ("rnn", "lstm", "relu-lstm")),
    *(("ffnn", {"order": order}, "float32") for order in (2, 6)),
    ("rnn", {"num_layers": 2}, "int8"),
    ("ffnn", {}, "float16"),
]
RECURRENT = [case for case in CASES if case[0] not in ("ffnn", "transformer")]  # only these go on from pairs


@pytest.fixture(params=CASES, ids=lambda case: "-".join(map(str, case)), scope="module")
def engines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Engine, OnnxEngine]:
    """Give the engine of a run, with tables rounded as the export has them, and that of its export."""
    name, sizes, rows = request.param
    directory = tmp_path_factory.mktemp("runs")
    run = make_run(directory, name, **sizes)
    export_onnx(run, directory / "out", rows)
    model = load_model(run)
    model.load_state_dict(unpack_rows(pack_rows(model.state_dict(), model.tables(), rows)))
    record = json.loads((directory / "out" / "model.json").read_text(encoding="utf-8"))
    return TorchEngine(model), OnnxEngine(directory / "out", record)


def sentences() -> list[np.ndarray]:
    lengths = [3, 0, 9, 1, 3, 5, 70, *[4] * 15]
    texts = [np.append(random_ids(length, seed=place), END) for place, length in enumerate(lengths)]
    return [*texts, texts[0], texts[2][:4]]


def test_facts(engines: tuple[Engine, OnnxEngine]) -> None:
    ours, theirs = engines
    facts = ["vocab_size", "num_context", "num_words_seen", "log_z", "normalises", "is_exact", "loss_name", "device"]
    for fact in [*facts, "reads_trees"]:
        assert getattr(ours, fact) == getattr(theirs, fact), fact


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("carry", [False, True])
def test_sentences(engines: tuple[Engine, OnnxEngine], carry: bool, normalised: bool) -> None:
    expected, found = (SentenceScorer(one, normalised=normalised, carry=carry).score(sentences()) for one in engines)
    for some, others in zip(found, expected, strict=True):
        np.testing.assert_allclose(some, others, **CLOSE)


@pytest.mark.parametrize("engines", RECURRENT, indirect=True, ids=lambda case: "-".join(map(str, case)))
def test_a_step_in_parts(engines: tuple[Engine, OnnxEngine], monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven pairs in parts of three: the pairs of one state lie in two parts, and one part leaves a state out."""
    theirs = engines[1]
    entered = theirs.enter(np.array([2, 3, 4]))
    _, state = theirs.run(random_ids(12).reshape(3, 4), theirs.initial_state(4))
    pairs = np.array([0, 1, 2, 1, 0, 2, 2]), np.array([0, 0, 1, 3, 1, 2, 0])
    whole_BD, whole = theirs.branch(entered, pairs[0], state, pairs[1])
    monkeypatch.setattr(onnx_engine, "PART_PAIRS", 3)
    hidden_BD, after = theirs.branch(entered, pairs[0], state, pairs[1])
    for found, expected in zip((hidden_BD, *after), (whole_BD, *whole), strict=True):
        np.testing.assert_allclose(found, expected, **CLOSE)


def test_hypotheses_with_and_after_states(engines: tuple[Engine, OnnxEngine]) -> None:
    texts, found = sentences()[:6], []
    for engine in engines:
        scorer = Scorer(engine)
        states = scorer.read([scorer.start()] * 6, [[], [3], [4, 5], [], [3], random_ids(80).tolist()])
        after = scorer.advance(states, [2, 3, 4, 5, 6, 7])
        found.append(
            [
                *score_prefixes(scorer, texts, normalised=True),
                *score_prefixes(scorer, texts, after=states),
                engine.numpy(scorer.score(after, [[1, 2]] * 6)),
                engine.numpy(scorer.score(after, [3] * 6, normalised=True)),
                engine.numpy(scorer.score_all(after[5])),
                engine.numpy(scorer.score_all(after[5], normalised=True)),
            ]
        )
    for some, others in zip(*found, strict=True):
        np.testing.assert_allclose(some, others, **CLOSE)


@pytest.mark.parametrize("block_numbers", [1, 2**22])
def test_the_whole_table(
    engines: tuple[Engine, OnnxEngine], block_numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bnce.scoring.engine.BLOCK_NUMBERS", block_numbers)
    monkeypatch.setattr("bnce.scoring.onnx_engine.MIN_BLOCK_WORDS", 7)
    ours, theirs = engines
    hidden = theirs.run(random_ids(12 * (1 + theirs.num_context)).reshape(-1, 12), theirs.initial_state(12))[0][-1]
    tensor = ours.array(hidden)
    np.testing.assert_allclose(theirs.all_scores(hidden), ours.numpy(ours.all_scores(tensor)), **CLOSE)
    np.testing.assert_allclose(theirs.log_normaliser(hidden), ours.numpy(ours.log_normaliser(tensor)), **CLOSE)
    np.testing.assert_allclose(theirs.entropy(hidden), ours.entropy(tensor), **CLOSE)
    for num_words, without in ((1, None), (5, 3), (10**6, None)):
        for found, expected in zip(
            theirs.top_words(hidden, num_words, without), ours.top_words(tensor, num_words, without), strict=True
        ):
            np.testing.assert_allclose(found, expected, **CLOSE)


def test_entropy_and_checks_and_texts(engines: tuple[Engine, OnnxEngine]) -> None:
    some, others = (EntropyScorer(one, normalised=True).score(sentences()) for one in engines)
    for found, expected in zip(some, others, strict=True):
        np.testing.assert_allclose(found, expected, **CLOSE)
    checks = []
    for engine in engines:
        scorer = SentenceScorer(engine, num_checked=50)
        scorer.score(sentences())
        checks.append(scorer.check())
    assert checks[0] is not None
    assert checks[1] is not None
    assert checks[0].log_z_mean == pytest.approx(checks[1].log_z_mean, abs=1e-5)
    texts = [generate(engine, [5, 7], 4, 9, Sampling(top_k=VOCAB_SIZE), seed=2) for engine in engines]
    assert texts[0] == texts[1]
