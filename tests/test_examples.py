"""The examples run as they stand, learn, and say how they are called."""

from __future__ import annotations

import json
import re
import runpy
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from command import Command

import bnce

EXAMPLES = Path(__file__).parents[1] / "examples"
# What an example needs beside bnce and PyTorch.
NEEDS = {"hugging_face": ["transformers", "accelerate"], "lightning_module": ["lightning"], "pieces": ["tokenizers"]}
# How an example that trains nothing is called.
WITHOUT_TRAINING = {"nbest_lists": "nemo|icefall|sctk", "pieces": "--size N"}


def example(name: str) -> dict[str, Any]:
    """Run the file without its main(); a `__pycache__` is not left beside it."""
    for package in NEEDS.get(name, []):
        pytest.importorskip(package)
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Lightning's own
@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.py")))
def test_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        example(name)["main"](["--help"])
    assert ended.value.code == 0
    assert WITHOUT_TRAINING.get(name, "--steps N") in capsys.readouterr().out


@pytest.mark.parametrize("loss", ["bnce", "chunk-bnce", "softmax"])
def test_transformer_learns(loss: str, capsys: pytest.CaptureFixture[str]) -> None:
    example("transformer")["main"](["--steps", "25", "--vocab-size", "200", "--loss", loss, "--device", "cpu"])
    found = re.search(r"step 25: loss [\d.]+, validation PPLf ([\d.]+), PPLn", capsys.readouterr().out)
    assert found is not None
    assert 10 < float(found[1]) < 100


@pytest.mark.parametrize("loss", ["bnce", "chunk-bnce", "softmax"])
def test_recommender_learns(loss: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sequences.txt"
    starts = torch.randint(60, (300,), generator=torch.Generator().manual_seed(1)).tolist()
    lines = [
        f"user{user} " + " ".join(str(1 + (start + at) % 60) for at in range(6)) for user, start in enumerate(starts)
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    given = ["--data", str(path), "--steps", "25", "--length", "5", "--size", "16", "--loss", loss, "--device", "cpu"]
    found = example("recommend")["main"](given)
    assert f"test HR@10 {found:.4f} of 60 items" in capsys.readouterr().out
    assert found > 2 * 10 / 60


def test_recommender_tells_chunk_nce_whose_items_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    forward = bnce.OutputLayer.forward

    def noted(layer: bnce.OutputLayer, *given: Any, streams: Any = None) -> Any:
        seen.append(streams)
        return forward(layer, *given, streams=streams)

    monkeypatch.setattr(bnce.OutputLayer, "forward", noted)
    names = example("recommend")
    model = names["Recommender"](torch.tensor([0, 1, 2, 3, 4]), 3, 8, "chunk-bnce")
    item_BL = torch.tensor([[0, 1, 2], [0, 0, 3], [4, 1, 2]])
    model.loss(item_BL, torch.tensor([[1, 2, 3], [0, 3, 1], [1, 2, 3]]))
    assert seen[0].tolist() == [0, 0, 1, 2, 2, 2]


def test_pieces_are_prepared_and_trained_on_like_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["lower", "lowest", "newer", "newest", "wider"]
    lines = [" ".join(words[(place * step) % 5] for place in range(6)) + "." for step in range(1, 200)]
    texts = {"train": lines, "valid": lines[:30], "test": ["Slower slowly, it's été 7.", *lines[:40]]}
    for name, text in texts.items():
        (tmp_path / f"{name}.txt").write_text("\n".join(text) + "\n", encoding="utf-8")
    given = [str(tmp_path / f"{name}.txt") for name in texts]
    example("pieces")["main"]([*given, "--size", "270", "--out", str(tmp_path / "cut")])
    train, valid, test = (tmp_path / "cut" / f"{name}.txt" for name in texts)
    cut = test.read_text(encoding="utf-8").splitlines()
    num_words = [len(line.replace(" ", "").split("Ġ")) - 1 for line in cut]
    assert num_words == [7, *[7] * 40], "slower slowly , it's été 7 ."
    assert cut[1].replace(" ", "").replace("Ġ", " ") == f" {lines[0].removesuffix('.')} ."
    assert {piece.count("Ġ") for line in cut for piece in line.split()} == {0, 1}

    normaliser = bnce.Normaliser(lowercase=False, tokens="whitespace", sentences="lines")
    corpus = bnce.prepare(train, tmp_path / "corpus", valid=valid, test=test, min_count=1, normaliser=normaliser)
    sizes = {"model.embedding_size": 6, "model.hidden_size": 8, "model.bottleneck_size": 7, "training.batch_size": 8}
    bnce.train("wiki", corpus=corpus, out=tmp_path / "run", model="relu-lstm", settings=sizes, device="cpu")
    of_pieces = bnce.evaluate(tmp_path / "run", by_sentence=False)
    capsys.readouterr()
    example("pieces")["main"]([str(test), "--run", str(tmp_path / "run")])
    # The text is as likely as it was; its words, and sentence ends, are fewer.
    per_word = 10 ** (-of_pieces.log10_prob_f / (sum(num_words) + len(cut)))
    assert per_word > of_pieces.ppl_f
    assert capsys.readouterr().out == f"test: PPLf {per_word:.2f} per word\n"


NEMO = ["the cat\t-1.5", "the cat sat\t-2", "\t0.5", "ünïcode\t-3"]
MANIFEST = [{"audio_filepath": "a.wav", "text": "the cat sat"}, {"audio_filepath": "b.wav", "text": "unicode"}]
ICEFALL = ["a:\tref=['the', 'cat']", "a:\thyp=['the']", "a:\ttimestamp_hyp=[0.1]", "a:\thyp=[]", "b:\tref=[]"]
ICEFALL += ["b:\thyp=['c']"]
SCTK = [";; comment", "the cat (a)", "(a)", "c (b)"]


@pytest.mark.parametrize(
    ("form", "files", "expected"),
    [
        (
            "nemo",
            [NEMO, map(json.dumps, MANIFEST)],
            [
                {
                    "utt": "a.wav",
                    "ref": "the cat sat",
                    "hyps": [{"text": "the cat", "score": -1.5}, {"text": "the cat sat", "score": -2.0}],
                },
                {
                    "utt": "b.wav",
                    "ref": "unicode",
                    "hyps": [{"text": "", "score": 0.5}, {"text": "ünïcode", "score": -3.0}],
                },
            ],
        ),
        (
            "icefall",
            [ICEFALL],
            [{"utt": "a", "ref": "the cat", "hyps": ["the", ""]}, {"utt": "b", "ref": "", "hyps": ["c"]}],
        ),
        ("sctk", [SCTK], [{"utt": "a", "hyps": ["the cat", ""]}, {"utt": "b", "hyps": ["c"]}]),
        (
            "sctk",
            [SCTK, ["c (b)", "(a)", ";; comment"]],
            [{"utt": "a", "ref": "", "hyps": ["the cat", ""]}, {"utt": "b", "ref": "c", "hyps": ["c"]}],
        ),
    ],
)
def test_lists_of_other_recognisers_become_json_lines(
    form: str,
    files: list[list[str]],
    expected: list[dict[str, Any]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    bnce: Command,
    trained: Path,
) -> None:
    paths = [str(tmp_path / f"file-{number}") for number in range(len(files))]
    for path, lines in zip(paths, files, strict=True):
        Path(path).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    example("nbest_lists")["main"]([form, *paths])
    printed = capsys.readouterr().out
    assert [json.loads(line) for line in printed.splitlines()] == expected
    (tmp_path / "lists.jsonl").write_text(printed, encoding="utf-8")
    found = bnce("rescore", trained, tmp_path / "lists.jsonl", "--weight", "lm_weight=0", "--json").json
    assert (found["num_utterances"], found["num_hypotheses"]) == (2, sum(len(one["hyps"]) for one in expected))


def test_beams_that_cannot_be_shared_out(tmp_path: Path) -> None:
    for name, lines in (("beams", NEMO[:3]), ("manifest", map(json.dumps, MANIFEST))):
        (tmp_path / name).write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(SystemExit, match="3 hypotheses cannot be shared out evenly among 2 utterances"):
        example("nbest_lists")["main"](["nemo", str(tmp_path / "beams"), str(tmp_path / "manifest")])


def test_code_about_other_fields_runs() -> None:
    text = (EXAMPLES.parent / "docs" / "other-fields.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["users"].tolist() == [0, 0, 0, 0, 1, 1, 2, 2, 2]
    assert names["loss"].isfinite()
    assert names["best"].shape == (3, 10)


def test_made_up_sequences_go_from_item_to_item() -> None:
    sequences = example("recommend")["make_sequences"](20, 50)
    assert all(1 <= item <= 50 for items in sequences for item in items)
    steps = {(later - item) % 50 for items in sequences for item, later in pairwise(items)}
    assert steps <= set(range(1, 21))


def test_hugging_face_model_leaves_padding_out() -> None:
    transformers = pytest.importorskip("transformers")
    # The model needs no Trainer, and so no accelerate.
    names = runpy.run_path(str(EXAMPLES / "hugging_face.py"))
    sizes = {"vocab_size": 50, "n_positions": 16, "n_embd": 8, "n_layer": 1, "n_head": 2}
    torch.manual_seed(1)
    model = names["LanguageModel"](
        transformers.GPT2Config(**sizes, bos_token_id=None, eos_token_id=None), torch.ones(50)
    ).eval()
    texts = names["make_texts"](6, 50)
    batch = {name: torch.stack([text[name] for text in texts]) for name in texts[0]}
    with torch.no_grad():
        value = model(**batch)["loss"]
        assert torch.equal(
            value, model(**{**batch, "input_ids": batch["input_ids"].where(batch["labels"] >= 0, 9)})["loss"]
        )
    model.train()(**batch)["loss"].backward()
    assert model.body.wte.weight.grad.is_sparse
    assert model.head.weight.grad.is_sparse
    optimiser = names["make_optimiser"](model)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimiser.step()
    changed = [not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True)]
    assert all(changed)
    # The groups stay shared when a checkpoint is read back, so a schedule still reaches both.
    optimiser.load_state_dict(optimiser.state_dict())
    for group in optimiser.param_groups:
        group["lr"] = 0.5
    assert [group["lr"] for part in optimiser.parts for group in part.param_groups] == [0.5, 0.5]


def test_hugging_face_trainer_clips_gradients_that_are_not_scaled() -> None:
    """With fp16, the gradients of a Trainer are thousands of times too large until its accelerator unscales them."""
    pytest.importorskip("transformers")
    names = runpy.run_path(str(EXAMPLES / "hugging_face.py"))
    parameter = torch.nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([3.0, 4.0]) * 1024

    def unscale() -> None:
        assert parameter.grad is not None
        parameter.grad /= 1024

    trainer = SimpleNamespace(accelerator=SimpleNamespace(unscale_gradients=unscale))
    names["clip_sparse_gradients"](trainer)
    assert trainer.accelerator.clip_grad_norm_([parameter], 1.0, norm_type=2).item() == 5.0
    torch.testing.assert_close(parameter.grad, torch.tensor([0.6, 0.8]))


def test_hugging_face_trainer_learns(capsys: pytest.CaptureFixture[str]) -> None:
    figures = example("hugging_face")["main"](["--steps", "12", "--vocab-size", "40"])
    assert figures["eval_loss"] < 3.3  # ln 40 is 3.69
    assert "validation perplexity" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore")  # Lightning's own: advice on workers and loaders, deprecated calls of PyTorch
def test_lightning_learns(capsys: pytest.CaptureFixture[str]) -> None:
    assert example("lightning_module")["main"](["--steps", "25", "--classes", "40"]) < 25
    assert "validation perplexity" in capsys.readouterr().out


def test_notebook_runs_from_top_to_bottom(capsys: pytest.CaptureFixture[str]) -> None:
    """As a kernel runs it: one cell after the other, in one set of names; on less text."""
    cells = json.loads((EXAMPLES / "quickstart.ipynb").read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [(cell["outputs"], cell["execution_count"]) for cell in code] == [([], None)] * len(code), "clear them"
    names: dict[str, Any] = {"__name__": "__main__"}
    sources = ["".join(cell["source"]) for cell in code]
    assert sources[0].count("[:500_000]") == 1
    sources[0] = sources[0].replace("[:500_000]", "[:200_000]")
    try:
        for number, source in enumerate(sources, 1):
            exec(compile(source, f"<cell {number}>", "exec"), names)
    finally:
        names["temporary"].cleanup()
    assert not names["folder"].exists()
    printed = capsys.readouterr().out
    # Far from a guess among the words by their frequencies, whose perplexity is 259.
    softmax, by_nce = names["results"]["softmax"], names["results"]["bnce"]
    assert softmax.ppl_n is None
    assert max(softmax.ppl_f, by_nce.ppl_f) < 150
    assert by_nce.ppl_n == pytest.approx(by_nce.ppl_f, rel=0.1)
    assert re.search(r"^bnce +\d+\.\d +\d+\.\d ", printed, re.MULTILINE), "a row with PPLn and PPLf"
    assert re.search(r"^banana .* not in the vocabulary$", printed, re.MULTILINE)
    assert len(re.findall(r"^0\.\d{3}  \S+$", printed, re.MULTILINE)) == 5, "the next words"
    alone = re.search(r"^test: PPLn ([\d.]+), PPLf ([\d.]+)$", printed, re.MULTILINE)
    assert alone is not None
    assert max(float(value) for value in alone.groups()) < 150
