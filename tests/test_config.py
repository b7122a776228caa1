"""Settings: TOML there and back, changed one by one, and what a wrong one is told."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bnce import UserError
from bnce.config import (
    LossConfig,
    ModelConfig,
    OptimiserConfig,
    RunConfig,
    TrainingConfig,
    from_tables,
    read_config,
    to_toml,
)
from bnce.recipes.recipe import load_recipe


def refusal(name: str, *, model: str | None = None, loss: str | None = None, settings: tuple[str, ...] = ()) -> str:
    with pytest.raises(UserError) as caught:
        load_recipe(name, model=model, loss=loss, settings=settings)
    return str(caught.value)


def write(directory: Path, name: str, text: str) -> str:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return str(path)


# There and back.


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(recipe=st.text(), corpus=st.text(), rate=st.floats(1e-300, 1e38), power=st.floats(-10, 10))
def test_round_trip(tmp_path: Path, recipe: str, corpus: str, rate: float, power: float) -> None:
    before = RunConfig(
        recipe=recipe,
        corpus=corpus,
        optimiser=OptimiserConfig(learning_rate=rate),
        loss=LossConfig(noise_power=power, learn_log_z=True),
    )
    path = tmp_path / "config.toml"
    path.write_text(to_toml(before), encoding="utf-8")
    # NaN is not equal to itself, but it is written as it is read.
    assert repr(read_config(path)) == repr(before)


@pytest.mark.parametrize(
    "text", ['"', "\\", "a\\u0041", "\n\r\t\0\x7f", "'''", '"""', "# no comment", "ü–日本", "\u2028"]
)
def test_odd_strings_round_trip(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(to_toml(RunConfig(corpus=text)), encoding="utf-8")
    assert read_config(path).corpus == text


# --set key=value.


@pytest.mark.parametrize(
    ("setting", "section", "key", "value"),
    [
        ("training.epochs=3", "training", "epochs", 3),
        ("training.epochs=3.0", "training", "epochs", 3),
        ("training.epochs=0.5", "training", "epochs", 0.5),
        ("training.budget=10 min", "training", "budget", "10 min"),
        ('training.budget="1.5h"', "training", "budget", "1.5h"),
        (" training.epochs = 3 ", "training", "epochs", 3),
        ("optimiser.learning_rate=1", "optimiser", "learning_rate", 1.0),
        ("optimiser.learning_rate=1e-3", "optimiser", "learning_rate", 0.001),
        ("loss.learn_log_z=true", "loss", "learn_log_z", True),
        ("loss.noise=uniform", "loss", "noise", "uniform"),
        ('loss.noise="uniform"', "loss", "noise", "uniform"),
    ],
)
def test_settings_go_on_top(setting: str, section: str, key: str, value: object) -> None:
    found = getattr(getattr(load_recipe("ltcb", settings=[setting]), section), key)
    assert found == value
    assert type(found) is type(value)


def test_the_last_setting_wins() -> None:
    assert load_recipe("ltcb", settings=["training.epochs=3", "training.epochs=4"]).training.epochs == 4


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("epochs=3", "settings received 'epochs=3': write it as section.key=value, such as training.epochs=3."),
        (
            "training.epochs",
            "settings received 'training.epochs': write it as section.key=value, such as training.epochs=3.",
        ),
        ("", "settings received '': write it as section.key=value, such as training.epochs=3."),
        (
            "trainin.epochs=3",
            "Unknown section 'trainin': choose one of model, loss, optimiser, training. Did you mean 'training'?",
        ),
        (
            "model.hiden_size=3",
            "Unknown setting in ltcb: [model]: 'hiden_size': choose one of name, embedding_size, hidden_size, "
            "bottleneck_size, order, num_layers, num_heads, context, dropout, embedding_range. "
            "Did you mean 'hidden_size'?",
        ),
        ("training.epochs=three", "ltcb: [training] epochs is 'three': it must be of type float."),
        ("training.epochs=true", "ltcb: [training] epochs is True: it must be of type float."),
        ("training.epochs=", "ltcb: [training] epochs is '': it must be of type float."),
        ("training.budget=10", "ltcb: [training] budget is 10: it must be of type str."),
        ("model.dropout=true", "ltcb: [model] dropout is True: it must be of type float."),
        ("loss.log_z=1e12", "loss.log_z is 1000000000000.0: it must be from -100 to 100."),
        ("loss.log_z=nan", "loss.log_z is nan: it must be from -100 to 100."),
        ("loss.learn_log_z=1", "ltcb: [loss] learn_log_z is 1: it must be of type bool."),
        ("loss.noise=3", "ltcb: [loss] noise is 3: it must be of type str."),
        ("model.name=rnn", "settings received 'model.name=rnn': the model has its own argument, so use that one."),
        ("loss.name=bnce", "settings received 'loss.name=bnce': the loss has its own argument, so use that one."),
        ("loss.noise=zipf", "Unknown noise 'zipf': choose one of unigram, uniform, log-uniform."),
        (
            "optimiser.name=adam",
            "Unknown optimiser 'adam': choose one of sgd, rowwise, rowwise-adam. Did you mean 'rowwise-adam'?",
        ),
        (
            "optimiser.schedule=half",
            "Unknown optimiser.schedule 'half': choose one of halve, linear, cosine. Did you mean 'halve'?",
        ),
        (
            "optimiser.gradient=token",
            "Unknown optimiser.gradient 'token': choose one of streams, tokens. Did you mean 'tokens'?",
        ),
        *(
            (
                f"training.budget={given}",
                f"training.budget is '{given}': give a number above 0 and one of the units s, min, h, such as 10 min.",
            )
            for given in ("0 min", "ten min", "10 days", "-1 h", "min", "1e3 s", "9" * 400 + " h")
        ),
    ],
)
def test_bad_settings_are_told(setting: str, sentence: str) -> None:
    assert refusal("ltcb", settings=(setting,)) == sentence


# Values that cannot be.

OUT_OF_RANGE = {
    "it must be at least 1.": """
        model.hidden_size=0 model.embedding_size=-1 model.bottleneck_size=0 optimiser.patience=0
        training.batch_size=0 training.num_steps=0 training.evaluations_per_epoch=0
    """,
    "it must be at least 2.": """
        model.order=1
    """,
    "it must be at least 0 and below 1.": """
        model.dropout=1.0 model.dropout=nan optimiser.beta2=1.0 optimiser.beta2=-0.1
        optimiser.beta2=nan
    """,
    "it must be from 0 to 100.": """
        model.embedding_range=-0.1 model.embedding_range=1e+39 model.embedding_range=nan
    """,
    "it must be from -10 to 10.": """
        loss.noise_power=1e+300 loss.noise_power=nan
    """,
    "it must be at least 0.": """
        loss.num_noise=-1 optimiser.warmup_steps=-1 training.max_train_tokens=-1
        training.max_valid_tokens=-1 training.seed=-1
    """,
    "it must be above 0 and at most 1e+38.": """
        optimiser.learning_rate=0.0 optimiser.learning_rate=nan optimiser.body_learning_rate=-1.0
        optimiser.clip_norm=0.0
    """,
    "it must be from 1e-20 to 1e+38.": """
        optimiser.eps=0.0 optimiser.eps=inf
    """,
    "it must be above 0 and at most 2147483647.": """
        training.epochs=0 training.epochs=-0.5 training.epochs=nan training.epochs=inf
    """,
    "it must be from 0 to 1.": """
        training.reset_rate=1.5
    """,
    "it must be above 0.": """
        training.checkpoint_seconds=0.0
    """,
}


@pytest.mark.parametrize(("rule", "settings"), OUT_OF_RANGE.items())
def test_values_out_of_range_are_told(rule: str, settings: str) -> None:
    for setting in settings.split():
        key, value = setting.split("=")
        assert refusal("ltcb", settings=(setting,)) == f"{key} is {value}: {rule}"


@pytest.mark.parametrize("loss", ["nce", "snce"])
def test_drawn_noise_needs_noise_words(loss: str) -> None:
    assert refusal("ltcb", loss=loss, settings=("loss.num_noise=0",)) == (
        f"loss.num_noise of {loss} is 0: it must be at least 1."
    )


def test_samplers_are_for_sampled_softmax() -> None:
    settings = ("loss.replacement=false",)
    assert refusal("ltcb", loss="snce", settings=settings) == (
        "loss.replacement is False, but snce has no use for it: leave it out, or use loss='sampled-softmax'."
    )
    assert not load_recipe("ltcb", loss="sampled-softmax", settings=settings).loss.replacement


def test_adaptive_bnce_is_bnce_with_noise_words() -> None:
    assert load_recipe("ltcb", loss="bnce", settings=["loss.num_noise=50"]).loss.num_noise == 50


# A run's config.toml.


def test_a_run_of_0_2_is_read_without_settings_that_are_gone(tmp_path: Path) -> None:
    config = load_recipe("demo")
    written = to_toml(config).replace("[loss]\n", '[loss]\nremove_hits = true\nnum_classes = 0\nsoftmax = "fused"\n')
    written = written.replace("[training]\n", '[training]\ntables = "auto"\nwire = "float32"\nrow_capacity = 0\n')
    assert read_config(write(tmp_path, "config.toml", written)) == config


@pytest.mark.parametrize("missing", ["recipe", "corpus", "model", "loss", "optimiser", "training"])
def test_a_run_s_config_that_was_cut_short_is_refused(tmp_path: Path, missing: str) -> None:
    whole = to_toml(load_recipe("demo"))
    cut = whole[: whole.index(f"[{missing}]" if f"[{missing}]" in whole else f"{missing} = ")]
    with pytest.raises(UserError, match=f"is cut short or damaged: it has no '{missing}'. Restore it"):
        read_config(write(tmp_path, "config.toml", cut))


def test_a_run_s_config_knows_no_recipe_keys() -> None:
    with pytest.raises(UserError, match=r"Unknown key in config.toml: 'base': choose one of model, loss, "):
        from_tables({"base": "ltcb"}, "config.toml")


def test_configs_are_frozen() -> None:
    for kind in (ModelConfig, LossConfig, OptimiserConfig, TrainingConfig, RunConfig):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(kind(), dataclasses.fields(kind)[0].name, "other")


# Numbers that the model chooses where they are 0.


@pytest.mark.parametrize(
    ("model", "chosen"),
    [("ffnn", (0, 0, 0)), ("relu-lstm", (1, 0, 0)), ("rnn", (1, 0, 0)), ("transformer", (6, 8, 20))],
)
def test_a_run_shows_the_numbers_that_were_chosen(model: str, chosen: tuple[int, int, int]) -> None:
    settled = RunConfig(model=ModelConfig(model, hidden_size=512)).model
    assert (settled.num_layers, settled.num_heads, settled.context) == chosen
    assert load_recipe("transformer", model=model).model.num_layers == chosen[0], "six are the Transformer's"


def test_models_without_a_number_of_layers_are_told() -> None:
    with pytest.raises(UserError, match=r"model.num_layers is 2, but FFNN has no number of layers to choose: leave it"):
        ModelConfig("ffnn", num_layers=2)


def test_other_formats_of_what_runs_write(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    deep = RunConfig(model=ModelConfig("lstm", num_layers=6))
    path.write_text(to_toml(deep), encoding="utf-8")
    assert read_config(path).model.num_layers == 6
    for wrong in ("", *(f"format = {value}\n" for value in ('"x"', "1", "3", "true", "2.0"))):
        path.write_text(to_toml(deep).replace("format = 2\n", wrong), encoding="utf-8")
        with pytest.raises(UserError, match=r"has (no )?format.*, but this version of bnce reads format 2: use the"):
            read_config(path)


@pytest.mark.parametrize(
    ("budget", "seconds"), [("", 0), ("90 s", 90), ("10 min", 600), ("1.5h", 5400), (" 2 h ", 7200)]
)
def test_a_budget_is_read_in_its_unit(budget: str, seconds: float) -> None:
    assert TrainingConfig(budget=budget).budget_seconds == seconds


@pytest.mark.parametrize(("epochs", "written"), [(2, "epochs = 2\n"), (2.0, "epochs = 2\n"), (0.5, "epochs = 0.5\n")])
def test_whole_epochs_are_written_as_before_fractions_were_allowed(epochs: float, written: str, tmp_path: Path) -> None:
    config = RunConfig(training=TrainingConfig(epochs=epochs))
    assert written in to_toml(config)
    (tmp_path / "config.toml").write_text(to_toml(config), encoding="utf-8")
    assert read_config(tmp_path / "config.toml") == config
