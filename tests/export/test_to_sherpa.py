"""The files for sherpa-onnx by its contract: names, types, metadata and numbers, as its C++ code asks for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from small_corpus import END, UNK

from bnce import UserError
from bnce.export.to_onnx import open_graph
from bnce.export.to_sherpa import export_sherpa
from bnce.runs.directory import RunDirectory
from bnce.runs.model_file import load_model
from bnce.scoring.run_model import load_run

from .exported_runs import make_run

CASES = [
    ("lstm", "bnce", {}),
    ("relu-lstm", "bnce", {}),
    ("lstm", "softmax", {}),
    ("relu-lstm", "bnce", {"num_layers": 2}),
]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(map(str, (*case[:2], *case[2].values()))))
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDirectory, Path]:
    name, loss, sizes = request.param
    directory = tmp_path_factory.mktemp("sherpa")
    run = make_run(directory, name, loss, **sizes)
    export_sherpa(run, directory / "out")
    return run, directory / "out"


def shapes(path: Path) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    session = open_graph(path)
    return tuple([(one.name, one.type) for one in side] for side in (session.get_inputs(), session.get_outputs()))  # type: ignore[return-value]


def test_names_types_and_metadata(exported: tuple[RunDirectory, Path]) -> None:
    run, out = exported
    whole, real = "tensor(int64)", "tensor(float)"
    for ending in (".onnx", ".int8.onnx"):
        assert shapes(out / f"no-state{ending}") == ([("x", whole), ("x_lens", whole)], [("nll", real)])
        assert shapes(out / f"with-state{ending}") == (
            [("x", whole), ("h0", real), ("c0", real)],
            [("log_softmax", real), ("next_h0", real), ("next_c0", real)],
        )
        for graph in ("no-state", "with-state"):
            about = {one.key: one.value for one in onnx.load(str(out / f"{graph}{ending}")).metadata_props}
            assert about["model_type"] == "rnnlm"
            assert (about["sos_id"], about["eos_id"]) == (str(END), str(END))
            assert about["vocab_size"] == str(len(run.vocabulary))
        model = run.config.model
        assert (about["hidden_size"], about["embedding_dim"]) == (str(model.hidden_size), str(model.embedding_size))
        assert about["num_layers"] == str(model.num_layers or 1)
    assert (out / "tokens.txt").read_text(encoding="utf-8").splitlines()[:2] == ["</s> 0", "<unk> 1"]
    assert {path.suffix for path in out.iterdir()} == {".onnx", ".txt"}, "one file each, with its weights inside"


def test_whole_hypotheses_as_the_offline_decoder_asks(exported: tuple[RunDirectory, Path]) -> None:
    """Padded with zeros to the longest, in one call; the answers are those of the run."""
    run, out = exported
    model = load_run(run.path)
    lists = [["w3", "w5", "w4"], ["w5"], [], ["w7", "w7", "w2", "w3", "w9"]]
    lists = [[model.vocabulary.words[2 + int(word[1:])] for word in words] for words in lists]
    x = np.zeros((4, 5), dtype=np.int64)
    for place, words in enumerate(lists):
        x[place, : len(words)] = model.vocabulary.encode(words)
    x_lens = np.array([len(words) for words in lists])
    expected = [-one.log_probs.sum() for one in model.score_words(lists, normalised=not model.self_normalised)]
    (nll,) = open_graph(out / "no-state.onnx").run(None, {"x": x, "x_lens": x_lens})
    np.testing.assert_allclose(nll, expected, atol=1e-4)
    (small,) = open_graph(out / "no-state.int8.onnx").run(None, {"x": x, "x_lens": x_lens})
    np.testing.assert_allclose(small, expected, rtol=0.1)
    assert not np.array_equal(small, nll)


def test_token_by_token_as_the_streaming_decoder_asks(exported: tuple[RunDirectory, Path]) -> None:
    """From zeros and the start of a sentence, as ComputeInitStates does; then each token with the state before it."""
    run, out = exported
    model = load_model(run)
    session = open_graph(out / "with-state.onnx")
    num_layers, _, size = model.initial_state(1)[0].shape
    h = c = np.zeros((num_layers, 1, size), dtype=np.float32)
    ids = [END, 5, 3, UNK, 9]
    with torch.no_grad():
        hidden, _ = model(torch.tensor(ids).unsqueeze(1), model.initial_state(1))
        expected = torch.log_softmax(model.output.all_scores(hidden[:, 0]), 1)
    for place, number in enumerate(ids):
        log_softmax, h, c = session.run(None, {"x": np.array([[number]]), "h0": h, "c0": c})
        assert log_softmax.shape == (1, len(run.vocabulary))
        np.testing.assert_allclose(log_softmax[0], expected[place], atol=1e-4)
        assert np.exp(log_softmax).sum() == pytest.approx(1, abs=1e-4)


def test_the_tokens_of_a_recogniser(tmp_path: Path) -> None:
    """Its blank comes first, its end of sentence elsewhere, and words in an order of its own."""
    run = make_run(tmp_path, "lstm")
    words = run.vocabulary.words[2:]
    names = ["<blk>", "<sos/eos>", "<unk>", *reversed(words)]
    tokens = tmp_path / "tokens.txt"
    tokens.write_text("".join(f"{name} {number}\n" for number, name in enumerate(names)), encoding="utf-8")
    found = export_sherpa(run, tmp_path / "out", tokens)
    assert (found["vocab_size"], found["num_unknown_tokens"]) == (len(names), 1)
    about = {one.key: one.value for one in onnx.load(str(tmp_path / "out" / "with-state.onnx")).metadata_props}
    assert (about["sos_id"], about["vocab_size"]) == ("1", str(len(names)))
    model = load_run(run.path)
    chosen = [words[4], words[0], words[2]]
    x = np.array([[names.index(word) for word in chosen]])
    (nll,) = open_graph(tmp_path / "out" / "no-state.onnx").run(None, {"x": x, "x_lens": np.array([3])})
    assert nll[0] == pytest.approx(-model.score_words([chosen])[0].log_probs.sum(), abs=1e-4)
    assert (tmp_path / "out" / "tokens.txt").read_text(encoding="utf-8") == tokens.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a 0\nb 2\n", "does not number its 2 tokens from 0 without gaps"),
        ("a 0\nb 0\n", "has 'b 0' on line 2: give 'token number' lines, each number once"),
        ("a\n", "has 'a' on line 1"),
        ("x 0\ny 1\nz 2\n", "has 3 tokens, but only 0 of them are words of this run"),
    ],
)
def test_tokens_that_are_none(tmp_path: Path, content: str, message: str) -> None:
    run = make_run(tmp_path, "lstm")
    (tmp_path / "tokens.txt").write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        export_sherpa(run, tmp_path / "out", tmp_path / "tokens.txt")
    assert not (tmp_path / "out").exists()


def test_other_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be exported to sherpa, only lstm, relu-lstm can"):
        export_sherpa(make_run(tmp_path, "transformer"), tmp_path / "out")
