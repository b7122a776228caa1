"""The directory for transformers, opened as its users open it, and as a run, also after transformers saved it."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from command import Refused, run_command
from run_files import MODEL_FILE, settings_of, words_of
from safetensors.torch import load_file
from small_corpus import END, UNK, random_ids, small_run
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, pipeline

from bnce import Model, Sampling, load

from .exported_runs import MODELS

Opened = tuple[Path, Path, Any, Any]


@pytest.fixture(scope="module", autouse=True)
def modules_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the code that is opened here out of the user's own cache."""
    with pytest.MonkeyPatch.context() as patch:
        place = str(tmp_path_factory.mktemp("modules"))
        patch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", place)
        patch.setattr(sys, "path", list(sys.path))
        for name in [name for name in sys.modules if name.startswith("transformers_modules")]:
            patch.delitem(sys.modules, name)  # of another test's cache
        transformers.utils.logging.disable_progress_bar()
        yield


@pytest.fixture(scope="module", params=[*((name, {}) for name in MODELS), ("relu-lstm", {"num_layers": 2})], ids=str)
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Opened:
    """Give a run, its export, and the export's model and tokenizer."""
    directory = tmp_path_factory.mktemp("runs")
    name, sizes = request.param
    run, out = small_run(directory / "run", name, order=3, **sizes), directory / "out"
    record = run_command("export", run, "--to", "transformers", "--out", out, "--json").json
    assert 0 <= record["max_difference"] < 1e-4
    model = AutoModelForCausalLM.from_pretrained(out, trust_remote_code=True)
    return run, out, model, AutoTokenizer.from_pretrained(out, trust_remote_code=True)


def test_opens_as_any_other_model(opened: Opened) -> None:
    run, out, model, tokenizer = opened
    assert type(model).__name__ == "BnceForCausalLM"
    assert type(model).__module__.startswith("transformers_modules.")
    assert not model.training
    ours = load_file(run / MODEL_FILE)
    assert model.state_dict().keys() == ours.keys()
    assert all(tensor.equal(ours[name]) for name, tensor in model.state_dict().items())
    assert tokenizer.get_vocab() == {word: number for number, word in enumerate(words_of(run))}
    special = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id)
    assert special == (END, END, END, UNK)
    config = AutoConfig.from_pretrained(out, trust_remote_code=True)
    assert (config.model_type, config.body, config.log_z) == ("bnce", settings_of(run)["model"]["name"], 9.0)


CODE = {"modeling_bnce.py", "body.py", "feedforward.py", "recurrent.py", "transformer.py", "kernels.py"}


def test_needs_neither_bnce_nor_files_from_elsewhere(opened: Opened) -> None:
    for name in CODE:
        code = (opened[1] / name).read_text(encoding="utf-8")
        assert "import bnce" not in code
        assert "from bnce" not in code
        beside = {f"{module}.py" for module in re.findall(r"from \.(\S+) import", code)}
        assert beside <= CODE
        # Versions of transformers before 5 look no further than into this file.
        assert name != "modeling_bnce.py" or beside == CODE - {name}


def test_a_text_gets_the_perplexity_that_we_give_it(opened: Opened) -> None:
    run, _, model, tokenizer = opened
    ids = random_ids(300, seed=8)
    known = words_of(run)
    words = [known[number] for number in ids[ids != END]]
    input_ids = tokenizer(" ".join(words), return_tensors="pt")["input_ids"]
    assert input_ids[0, 1:].tolist() == ids[ids != END].tolist()
    with torch.no_grad():
        loss = float(model(input_ids, labels=input_ids).loss)
    (scored,) = load(run).score_words([words], mode="normalised")
    assert loss == pytest.approx(-scored.log_probs[:-1].mean(), rel=1e-5)  # without </s>, which they do not add


def test_prompts_of_several_lengths_go_on_as_ours_do(opened: Opened) -> None:
    run, _, model, tokenizer = opened
    prompts = ["w5 w7 w2", "w9", "w3 xyzzy w3 w3 w8"]
    encoded = tokenizer(prompts, return_tensors="pt", padding=True)
    made = model.generate(**encoded, max_new_tokens=8, do_sample=False)
    written = tokenizer.batch_decode(made[:, encoded["input_ids"].shape[1] :], skip_special_tokens=True)
    writer = pipeline("text-generation", model=model, tokenizer=tokenizer)
    for prompt, text in zip(prompts, written, strict=True):
        (ours,) = load(run).generate(prompt, 1, 8, Sampling(temperature=0), seed=1)
        expected = ours.removeprefix(prompt).removesuffix(" …").strip()
        assert text.strip() == expected
        (record,) = writer(prompt, max_new_tokens=8, do_sample=False)
        assert record["generated_text"] == f"{prompt} {expected}".rstrip()


def test_is_a_run_too_also_after_transformers_saved_it(opened: Opened, tmp_path: Path) -> None:
    run, out, model, _ = opened
    copy = shutil.copytree(out, tmp_path / "copy")
    (copy / MODEL_FILE).unlink()
    model.save_pretrained(copy)
    expected, exported, saved = (log_probs(load(path)) for path in (run, out, copy))
    assert exported == saved == expected


def log_probs(model: Model) -> list[list[float]]:
    """Score some words with the softmax and with the constant Z."""
    words = [model.vocabulary.decode(random_ids(200, seed=9).tolist())]
    return [model.score_words(words, mode=mode)[0].log_probs.tolist() for mode in ("normalised", "unnormalised")]


def test_the_tokenizer_runs_no_code(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    _, out, _, tokenizer = opened
    # The library asks about the model's code nevertheless; no one answers here.
    monkeypatch.setattr("builtins.input", lambda _: "n")
    plain = AutoTokenizer.from_pretrained(out)
    assert plain("w2 w3\nw4 w5")["input_ids"] == tokenizer("w2 w3\nw4 w5")["input_ids"] == [0, 2, 3, 0, 4, 5]


def test_files(opened: Opened) -> None:
    run, out, _, _ = opened
    assert {file.name for file in out.iterdir()} == {
        *CODE, "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
        "config.toml", "vocab.txt", "counts.npy", "run.json", "spelling.safetensors",
    }  # fmt: skip
    assert json.loads((out / "config.json").read_text(encoding="utf-8"))["vocab_size"] == len(words_of(run))


def test_another_model_is_noticed_and_nothing_is_written(
    refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, plain = small_run(tmp_path / "run"), transformers.PreTrainedModel.from_pretrained.__func__

    def open_another(kind: type, *given: Any, **options: Any) -> Any:
        model = plain(kind, *given, **options)
        with torch.no_grad():
            model.state_dict()["body.cell.weight_hh_l0"][0, 0] += 0.5
        return model

    monkeypatch.setattr(transformers.PreTrainedModel, "from_pretrained", classmethod(open_another))
    told = refused("export", run, "--to", "transformers", "--out", tmp_path / "out")
    assert re.search(r"The model that transformers opens differs from PyTorch by .* nothing was", told)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_refusals(refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export = ["export", small_run(tmp_path / "run", "rnn"), "--to", "transformers", "--out"]
    assert "already exists" in refused(*export, tmp_path / "run")
    monkeypatch.setitem(sys.modules, "transformers", None)
    told = refused(*export, tmp_path / "out")
    assert re.search(r"needs the package 'transformers', .* pip install 'bnce\[export\]'", told)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_disk_that_is_full_at_the_tokenizer(
    refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = small_run(tmp_path / "run")

    def fill_disk(directory: Path) -> None:
        (directory / "tokenizer.json").symlink_to("/dev/full")

    monkeypatch.setattr("bnce.export.to_transformers.write_code", fill_disk)
    assert "The disk is full" in refused("export", run, "--to", "transformers", "--out", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
