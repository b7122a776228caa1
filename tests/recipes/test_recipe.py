"""Recipes and their bases: the settings of the paper, what differs by model, loss and corpus, and wrong ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command import Command, Refused

from bnce import LOSSES, MODELS

Load = Callable[..., Any]
Refusal = Callable[..., str]
RECIPES = ("demo", "ltcb", "news", "obwb", "small", "transformer", "wiki")
LISTED = ", ".join(RECIPES)


def options(model: str | None, loss: str | None, settings: tuple[str, ...]) -> list[str]:
    chosen = [("--model", model), ("--loss", loss), *(("--set", setting) for setting in settings)]
    return [word for option, value in chosen if value is not None for word in (option, value)]


@pytest.fixture
def load_recipe(bnce: Command) -> Load:
    """Give what `bnce info` says of a recipe: its name, and its tables of settings."""

    def load(name: str, *, model: str | None = None, loss: str | None = None, settings: tuple[str, ...] = ()) -> Any:
        record = bnce("info", name, *options(model, loss, settings), "--json").json
        tables = {table: SimpleNamespace(**values) for table, values in record["settings"].items()}
        return SimpleNamespace(recipe=record["recipe"], **tables)

    return load


@pytest.fixture
def refusal(refused: Refused) -> Refusal:
    """Give the sentence in which a recipe is refused."""

    def ask(name: str, *, model: str | None = None, loss: str | None = None) -> str:
        return refused("info", name, *options(model, loss, ())).removeprefix("bnce: ")

    return ask


def write(directory: Path, name: str, text: str) -> str:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_shipped_recipe_loads_for_every_model_and_loss(recipe: str, load_recipe: Load) -> None:
    pairs = [(model, "bnce") for model in MODELS] + [("lstm", loss) for loss in LOSSES]
    for model, loss in pairs:
        loaded = load_recipe(recipe, model=model, loss=loss)
        assert (loaded.recipe, loaded.model.name, loaded.loss.name) == (recipe, model, loss)


# The paper's figures.


@pytest.mark.parametrize("model", MODELS)
def test_ltcb_is_the_paper(model: str, load_recipe: Load) -> None:
    """Section 4.2 and Table 1."""
    loaded = load_recipe("ltcb", model=model, loss="bnce")
    assert (loaded.model.embedding_size, loaded.model.hidden_size, loaded.model.dropout) == (200, 600, 0.0)
    assert (vars(loaded.model).get("bottleneck_size", 400), vars(loaded.model).get("order", 5)) == (400, 5)
    loss = loaded.loss
    assert (loss.name, loss.num_noise, loss.log_z, loss.learn_log_z) == ("bnce", 0, 9.0, False)
    optimiser = loaded.optimiser
    assert (optimiser.name, optimiser.learning_rate, optimiser.clip_norm) == ("sgd", 0.4, 5.0)
    assert (optimiser.schedule, optimiser.patience, optimiser.gradient) == ("halve", 7, "streams")
    assert loaded.training.batch_size == 400
    assert load_recipe("ltcb", loss="snce").loss.num_noise == 100
    assert load_recipe("ltcb", loss="nce").loss.num_noise == 100


@pytest.mark.parametrize("model", MODELS)
def test_obwb_is_the_paper(model: str, load_recipe: Load) -> None:
    """Section 4.3 and Table 3: "similar to LTCB with minor differences"."""
    loaded, ltcb = load_recipe("obwb", model=model), load_recipe("ltcb", model=model)
    assert (loaded.model.embedding_size, loaded.model.hidden_size) == (500, 1500)
    assert (vars(loaded.model).get("bottleneck_size", 600), vars(loaded.model).get("order", 5)) == (600, 5)
    assert vars(loaded.optimiser) == {**vars(ltcb.optimiser), "learning_rate": 1.0}
    assert loaded.training.batch_size == 500
    assert loaded.loss == ltcb.loss
    assert load_recipe("obwb", loss="snce").loss.num_noise == 200


# Recipes and their bases.


def test_a_recipe_names_one_base(tmp_path: Path, load_recipe: Load, refused: Refusal) -> None:
    """What it says goes before what its base says, table by table and key by key."""
    write(
        tmp_path, "below.toml", 'base = "ltcb"\n[model]\nhidden_size = 7\ndropout = 0.5\n[losses.snce]\nnum_noise = 3\n'
    )
    name = write(
        tmp_path,
        "above.toml",
        'base = "below.toml"\ncorpus = "here"\n[model]\nhidden_size = 8\n[models.rnn]\nembedding_size = 9\n',
    )
    loaded = load_recipe(name, model="rnn", loss="snce")
    assert loaded.recipe == "above"
    assert f"'{Path.cwd() / 'here'}' does not exist" in refused("train", name, "--out", tmp_path / "run")
    assert (loaded.model.hidden_size, loaded.model.dropout, loaded.model.embedding_size) == (8, 0.5, 9)
    assert loaded.loss.num_noise == 3
    assert loaded.training.batch_size == 400, "from ltcb, two bases below"
    assert load_recipe(name, model="lstm").model.embedding_size == 200, "what [models.rnn] says is for rnn"


def test_a_model_and_a_loss_may_have_rates_of_their_own(tmp_path: Path, load_recipe: Load) -> None:
    """The loss's go before the model's, and a setting before both."""
    name = write(
        tmp_path,
        "own.toml",
        'base = "wiki"\n[models.rnn]\nhidden_size = 7\n[models.rnn.optimiser]\nlearning_rate = 0.1\n'
        "body_learning_rate = 0.2\n[losses.softmax.optimiser]\nlearning_rate = 0.3\n",
    )

    def rates(*, model: str, loss: str, settings: tuple[str, ...] = ()) -> tuple[float, float]:
        optimiser = load_recipe(name, model=model, loss=loss, settings=settings).optimiser
        return optimiser.learning_rate, optimiser.body_learning_rate

    assert load_recipe(name, model="rnn").model.hidden_size == 7
    assert rates(model="lstm", loss="bnce") == (0.04, 0.004)
    assert rates(model="rnn", loss="bnce") == (0.1, 0.2)
    assert rates(model="rnn", loss="softmax") == (0.3, 0.2)
    assert rates(model="rnn", loss="softmax", settings=("optimiser.learning_rate=0.5",)) == (0.5, 0.2)


def test_an_optimiser_may_have_rates_of_its_own(tmp_path: Path, load_recipe: Load) -> None:
    """They hold however it is chosen; what a recipe says goes before what its base says of the optimiser."""
    below = """base = "ltcb"
        [optimiser]
        name = "rowwise"
        learning_rate = 0.4
        [optimisers.rowwise-adam]
        learning_rate = 0.02
        eps = 1e-5
        [losses.nce.optimiser]
        name = "rowwise-adam"
        [models.rnn.optimiser]
        learning_rate = 0.01
        """
    above = """base = "below.toml"
        [optimiser]
        name = "rowwise-adam"
        learning_rate = 0.03
        [optimisers.sgd]
        learning_rate = 0.7
        """
    names = [write(tmp_path, "below.toml", below), write(tmp_path, "above.toml", above)]

    def rate(name: str, *settings: str, model: str = "lstm", loss: str = "bnce") -> float:
        return load_recipe(name, model=model, loss=loss, settings=settings).optimiser.learning_rate

    chosen = "optimiser.name=rowwise-adam"
    assert [rate(names[0]), rate(names[0], chosen), rate(names[0], loss="nce")] == [0.4, 0.02, 0.02]
    assert rate(names[0], "optimiser.learning_rate=0.5", chosen) == 0.5
    assert rate(names[0], chosen, model="rnn") == 0.01
    assert load_recipe(names[0], settings=(chosen,)).optimiser.eps == 1e-5
    assert [rate(names[1]), rate(names[1], "optimiser.name=sgd")] == [0.03, 0.7]


@pytest.mark.parametrize(("recipe", "rate"), [("wiki", 0.04), ("small", 0.02), ("demo", 0.08)])
def test_row_wise_adagrad_is_chosen_by_one_setting(recipe: str, rate: float, load_recipe: Load) -> None:
    """With the rates that the published figures of earlier versions were taken with."""
    default = load_recipe(recipe).optimiser
    assert (default.name, default.learning_rate, default.eps) == ("rowwise-adam", rate, 1e-6)
    chosen = load_recipe(recipe, settings=("optimiser.name=rowwise",)).optimiser
    assert vars(chosen) | {"eps": 1e-6} == {**vars(default), "name": "rowwise", "learning_rate": 0.4}
    for model in ("rnn", "ffnn"):  # with which row-wise Adam diverged, or was not tried
        assert load_recipe(recipe, model=model).optimiser == chosen


def test_a_base_stands_beside_its_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load_recipe: Load) -> None:
    """Whatever the recipe's own file is called, and wherever the command runs."""
    write(tmp_path, "below", "[model]\nhidden_size = 7\n")
    name = write(tmp_path, "above", 'base = "below"\n')
    monkeypatch.chdir("/")
    assert load_recipe(name).model.hidden_size == 7


def test_a_shipped_recipe_takes_no_file_for_its_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load_recipe: Load
) -> None:
    expected = load_recipe("demo")
    write(tmp_path, "wiki", "[model]\nhidden_size = 7\n")
    monkeypatch.chdir(tmp_path)
    assert load_recipe("demo") == expected


@pytest.mark.parametrize(
    ("first", "second"), [("b.toml", "a.toml"), ("./b.toml", "../x/a.toml"), ("../x/b.toml", "../x/a.toml")]
)
def test_a_circle_of_bases_is_refused(tmp_path: Path, first: str, second: str, refusal: Refusal) -> None:
    name = write(tmp_path, "x/a.toml", f'base = "{first}"\n')
    write(tmp_path, "x/b.toml", f'base = "{second}"\n')
    assert "is its own base (" in refusal(name)
    assert refusal(name).endswith("): give another base.")


def test_its_own_base_is_refused(tmp_path: Path, refusal: Refusal) -> None:
    name = write(tmp_path, "a.toml", 'base = "a.toml"\n')
    assert refusal(name) == f"Recipe '{name}' is its own base ({name} → {name}): give another base."


def test_the_defaults_are_the_recipe_s_own_model_and_loss(tmp_path: Path, load_recipe: Load) -> None:
    name = write(tmp_path, "a.toml", '[model]\nname = "rnn"\n[loss]\nname = "softmax"\n')
    loaded = load_recipe(name)
    assert (loaded.model.name, loaded.loss.name) == ("rnn", "softmax")
    assert load_recipe(name, model="ffnn").model.name == "ffnn"


# Names and files that cannot be.


def test_unknown_names_suggest_the_near_one(refusal: Refusal) -> None:
    assert refusal("ltbc") == (f"Unknown recipe 'ltbc': choose one of {LISTED}. Did you mean 'ltcb'?")
    assert refusal("ltcb", model="lsmt") == (
        "Unknown model 'lsmt': choose one of ffnn, rnn, relu-rnn, lstm, relu-lstm, transformer. Did you mean 'lstm'?"
    )
    assert refusal("ltcb", loss="b-nce") == (
        f"Unknown loss 'b-nce': choose one of {', '.join(LOSSES)}. Did you mean 'bnce'?"
    )


@pytest.mark.parametrize("name", ["missing.toml", "./missing", "a/b"])
def test_a_missing_file_is_told(name: str, refusal: Refusal) -> None:
    assert refusal(name) == (f"The recipe file '{name}' does not exist: give a TOML file or one of {LISTED}.")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[model", "'{name}' is not valid TOML: "),
        (
            "optimizer = 3",
            "Unknown setting in {name}: 'optimizer': choose one of model, loss, optimiser, training, models, ",
        ),
        ("[models.gpt]", "Unknown model in {name}: [models]: 'gpt': choose one of ffnn, rnn, "),
        (
            "[losses.bnc]",
            "Unknown loss in {name}: [losses]: 'bnc': choose one of softmax, ",
        ),
        ("[model]\nwidth = 3", "Unknown setting in {name}: [model]: 'width': choose one of embedding_size, "),
        ("[model]\nname = 3", "Unknown model 3: choose one of ffnn, "),
        ("model = 3", "{name}: model is 3: it must be a table of settings."),
        ("models = 3", "{name}: models is 3: it must be a table of settings."),
        ("[optimisers]\nsgd = 3", "{name}: optimisers.sgd is 3: it must be a table of settings."),
        ("[optimisers.adam]", "Unknown optimiser in {name}: [optimisers]: 'adam': choose one of sgd, "),
        ("[models]\nrnn = 3", "{name}: models.rnn is 3: it must be a table of settings."),
        ("[models.rnn]\noptimiser = 3", "{name}: models.rnn.optimiser is 3: it must be a table of settings."),
        (
            "[models.relu-lstm.optimiser]\nrate = 3",
            "Unknown setting in {name}: [optimiser]: 'rate': choose one of learning_rate, ",
        ),
        ("corpus = 3", "{name}: corpus is 3: it must be text."),
        ("base = 3", "{name}: base is 3: it must be text."),
        (
            'base = "ltcb"\n[model]\nhidden_size = {a = 1}',
            "model.hidden_size is {{'a': 1}}: it must be a whole number.",
        ),
        ('base = "nowhere"', "The recipe file '{base}' does not exist: give a TOML file or one of "),
    ],
)
def test_bad_recipes_are_told(tmp_path: Path, text: str, sentence: str, refusal: Refusal) -> None:
    name = write(tmp_path, "a.toml", text)
    assert refusal(name).startswith(sentence.format(name=name, base=tmp_path / "nowhere"))


def test_a_recipe_that_is_no_text(tmp_path: Path, refusal: Refusal) -> None:
    path = tmp_path / "a.toml"
    path.write_bytes(b"\xff\xfe\x00")
    assert refusal(str(path)).startswith(f"'{path}' is not valid TOML: ")


class TestCorpora:
    def test_demo_cuts_its_own_text_alone(self, tmp_path: Path, load_recipe: Load) -> None:
        assert load_recipe("demo").training.max_train_tokens == 400_000
        assert load_recipe(self.own(tmp_path, "demo", "docstrings")).training.max_train_tokens == 400_000
        assert load_recipe(self.own(tmp_path, "demo", "corpora/mine")).training.max_train_tokens == 0
        own = self.own(tmp_path, "demo", "mine", "[corpora.mine]\nepochs = 7\n")
        assert load_recipe(own).training.epochs == 7
        assert load_recipe(own, settings=("training.epochs=2",)).training.epochs == 2
        assert load_recipe(self.own(tmp_path, "demo", "other", "[corpora.mine]\nepochs = 7\n")).training.epochs == 1

    @staticmethod
    def own(directory: Path, base: str, corpus: str, more: str = "") -> str:
        return write(directory, "own.toml", f'base = "{base}"\ncorpus = "{corpus}"\n{more}')

    @pytest.mark.parametrize("name", RECIPES)
    def test_no_recipe_cuts_another_text(self, tmp_path: Path, name: str, load_recipe: Load) -> None:
        assert load_recipe(self.own(tmp_path, name, "corpora/mine")).training.max_train_tokens == 0

    def test_small_fits_a_cpu(self, tmp_path: Path, load_recipe: Load) -> None:
        """The whole text, few epochs, and an evaluation that is short beside the training between two of them."""
        training = load_recipe(self.own(tmp_path, "small", "corpora/mine")).training
        assert training.max_train_tokens == 0
        assert 1 <= training.epochs <= 3
        tokens_between = 1_000_000 / training.evaluations_per_epoch  # in the smallest text that it is for
        assert 0 < training.max_valid_tokens <= tokens_between / 20

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("corpora = 3", "corpora is 3: it must be a table of settings"),
            ("[corpora]\nmine = 3", "corpora.mine is 3: it must be a table of settings"),
            ('corpus = "mine"\n[corpora.mine]\nepoch = 3', "own.toml: [training]: 'epoch': choose one of"),
        ],
    )
    def test_what_is_no_table_of_settings_is_refused(
        self, tmp_path: Path, refusal: Refusal, text: str, message: str
    ) -> None:
        assert message in refusal(write(tmp_path, "own.toml", text))
