"""Training on a GPU: the captured step agrees with the CPU's, resumes to the bit, and costs the same at any V."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from making import draws_all
from torch import Tensor

from benchmarks.bench import bench
from bnce import OutputLayer
from bnce.corpus.streams import PrefetchedStreams, Resets, Streams, open_streams
from bnce.kernels.hopper import persistent
from bnce.language_model import LanguageModel
from bnce.machine.precision import float32_products
from bnce.machine.processes import World
from bnce.noise import make_noise
from bnce.recipes import load_recipe
from bnce.training.step import NUM_EAGER_STEPS, TrainingStep

V, B, T, NUM_CHUNKS = 200, 32, 10, 40
GPU, CPU = torch.device("cuda"), torch.device("cpu")
CONDITIONS = [
    ("relu-lstm", "bnce", "rowwise"),
    ("rnn", "chunk-bnce", "rowwise"),
    ("ffnn", "softmax", "rowwise"),
    ("lstm", "snce", "rowwise"),
    ("ffnn", "self-normalised-softmax", "rowwise"),
    ("relu-lstm", "sampled-softmax", "rowwise-adam"),
    ("relu-lstm", "adaptive-softmax", "rowwise-adam"),
    ("relu-lstm", "bnce", "rowwise-adam"),
    ("ffnn", "softmax", "rowwise-adam"),
    ("transformer", "chunk-bnce", "rowwise-adam"),
]
RATES = {"rowwise": 0.05, "rowwise-adam": 0.0025}


def markov_text() -> np.ndarray:
    """Speak a language with something to learn, so that gradients are more than noise."""
    generator = np.random.default_rng(3)
    weight_VV = np.exp(generator.standard_normal((V, 4)) @ generator.standard_normal((4, V))) / np.arange(1, V + 1)
    cumulated_VV = (weight_VV / weight_VV.sum(1, keepdims=True)).cumsum(1)
    word, words = 0, []
    for coin in generator.random(B * T * NUM_CHUNKS):
        word = min(int(np.searchsorted(cumulated_VV[word], coin)), V - 1)
        words.append(word)
    return np.array(words)


class Training:
    """A small model on the text above."""

    def __init__(
        self,
        model: str,
        loss: str,
        device: torch.device,
        precision: str,
        deterministic: bool = False,
        optimiser: str = "rowwise",
        reset_rate: float = 0.0,
    ) -> None:
        sizes = ["model.embedding_size=24", "model.hidden_size=40"]
        rates = [f"optimiser.learning_rate={RATES[optimiser]}", "optimiser.body_learning_rate=0.001"]
        dropout = ["model.dropout=0.1"] if deterministic else []
        if model == "transformer":
            sizes.append("model.num_layers=2")
        training = [f"training.batch_size={B}", f"training.num_steps={T}", f"training.precision={precision}"]
        training += [f"training.deterministic={str(deterministic).lower()}", "optimiser.gradient=tokens"]
        settings = [f"optimiser.name={optimiser}", *sizes, *rates, *dropout, *training]
        config = load_recipe("demo", model=model, loss=loss, settings=settings, of_several=True)
        ids = markov_text()
        torch.manual_seed(1)
        noise = make_noise("unigram", np.bincount(ids, minlength=V))
        self.step = TrainingStep(LanguageModel(config.model, config.loss, noise), config, World(), device)
        self.model, self.optimiser = self.step.model, self.step.optimiser
        self.start = self.parameters()
        self.streams = open_streams(ids, B, T, self.model.num_context, device)
        self.resets = Resets(self.streams, reset_rate, seed=1) if reset_rate else None
        self.step.fit_to_text(self.streams)
        self.num_steps = 0

    def parameters(self) -> dict[str, Tensor]:
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in self.model.state_dict().items()}

    def run(self, num_steps: int) -> float:
        for _ in range(num_steps):
            index = self.num_steps % len(self.streams)
            if index == 0:
                self.step.reset_state()
            chunk = self.streams.chunk(index)
            if self.resets is not None:
                chunk = self.resets.choose(chunk, index, self.num_steps // len(self.streams))
            self.step(chunk, 1.0, self.num_steps)
            self.num_steps += 1
        return float(self.step.loss_total) / (self.num_steps * B * T)


def distance(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    return float(sum((found[name] - expected[name]).double().square().sum() for name in expected)) ** 0.5


@pytest.mark.parametrize(("model", "loss", "optimiser"), CONDITIONS)
def test_agrees_with_the_cpu_within_the_error_of_bf16(model: str, loss: str, optimiser: str) -> None:
    # Not many more steps: after 200, two roundings of one model are 2 to 5% of its path away from the exact one, by
    # chance. After 60, they are within a quarter of each other.
    exact = Training(model, loss, CPU, "float32", optimiser=optimiser)
    exact_loss = exact.run(60)
    path = distance(exact.parameters(), exact.start)
    rounded, fast = (Training(model, loss, device, "bf16", optimiser=optimiser) for device in (CPU, GPU))
    rounded_loss, fast_loss = rounded.run(60), fast.run(60)
    # Drawn noise differs by device, so losses that draw can agree in their value only.
    draws = draws_all(loss)
    if not draws:
        allowed = 2 * distance(rounded.parameters(), exact.parameters()) / path + 0.01
        assert distance(fast.parameters(), exact.parameters()) / path <= allowed
    tolerance = 2 * abs(rounded_loss - exact_loss) + (0.02 if draws else 2e-3)
    assert abs(fast_loss - exact_loss) <= tolerance


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("model", ["relu-lstm", "rnn", "ffnn", "transformer"])
def test_resets_agree_with_the_cpu(model: str, precision: str) -> None:
    """In the captured step, with the kernels (bf16) and without: the same model but for rounding."""
    exact = Training(model, "chunk-bnce", CPU, "float32", reset_rate=0.5)
    exact_loss = exact.run(100)
    path = distance(exact.parameters(), exact.start)
    rounded, fast = (Training(model, "chunk-bnce", device, precision, reset_rate=0.5) for device in (CPU, GPU))
    rounded_loss, fast_loss = rounded.run(100), fast.run(100)
    assert fast.step._graph is not None
    allowed = 2 * distance(rounded.parameters(), exact.parameters()) / path + 0.01
    assert distance(fast.parameters(), exact.parameters()) / path <= allowed
    assert abs(fast_loss - exact_loss) <= 2 * abs(rounded_loss - exact_loss) + 2e-3
    without = Training(model, "chunk-bnce", CPU, "float32")
    without.run(100)
    assert distance(without.parameters(), exact.parameters()) / path > allowed, "resets do matter"


@pytest.mark.parametrize("num_context", [0, 3])
def test_resets_are_the_same_on_every_device(num_context: int) -> None:
    ids = markov_text()
    read = [Streams(ids, B, T, num_context), open_streams(ids, B, T, num_context, GPU)]
    read.append(PrefetchedStreams(ids, B, T, num_context))
    resets = [Resets(streams, 0.3, seed=2) for streams in read]
    for index in range(NUM_CHUNKS):
        chunks = [one.choose(streams.chunk(index), index, 1) for one, streams in zip(resets, read, strict=True)]
        found = [chunk.reset_LB.cpu() for chunk in chunks if chunk.reset_LB is not None]
        assert torch.equal(found[0], found[1])
        assert torch.equal(found[0], found[2])


@pytest.mark.parametrize(("model", "loss", "optimiser"), CONDITIONS)
def test_deterministic_training_resumes_to_the_bit(model: str, loss: str, optimiser: str) -> None:
    resume_to_the_bit(lambda: Training(model, loss, GPU, "bf16", deterministic=True, optimiser=optimiser))


@pytest.mark.parametrize("reset_rate", [0.0, 0.2])
@pytest.mark.parametrize("model", ["relu-lstm", "rnn"])
def test_recurrent_layers_in_one_launch_resume_to_the_bit(
    model: str, reset_rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BNCE_PERSISTENT", "1")
    resume_to_the_bit(lambda: Training(model, "bnce", GPU, "bf16", deterministic=True, reset_rate=reset_rate))
    assert persistent._READY, "it was not one launch"


def resume_to_the_bit(start: Callable[[], Training]) -> None:
    # One after the other: to start seeds what is drawn.
    whole = start()
    whole.run(30)
    first = start()
    first.run(NUM_EAGER_STEPS + 9)
    random_state = torch.cuda.get_rng_state()
    second = start()
    second.model.load_state_dict(first.model.state_dict())
    second.optimiser.load_state_tensors(first.optimiser.state_tensors())
    second.step.load_tensors(first.step.tensors())
    second.num_steps = first.num_steps
    torch.cuda.set_rng_state(random_state)
    second.run(30 - second.num_steps)
    expected = whole.parameters()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in second.parameters().items())


def test_a_short_chunk_among_the_first_is_not_the_one_that_is_captured() -> None:
    training = Training("relu-lstm", "bnce", GPU, "bf16")
    ids = markov_text()[: B * (2 * T + 3)]
    training.streams = Streams(ids, B, T, training.model.num_context)
    training.run(2 + 1)  # two whole chunks, and the short one that ends the epoch
    assert training.step.starts_up
    training.run(1)
    assert not training.step.starts_up
    assert training.step._chunk is not None
    assert training.step._chunk.target_TB.shape == (T, B)


def test_text_on_the_device_is_the_same_text() -> None:
    ids = markov_text()
    for num_context in (0, 3):
        host, device = Streams(ids, B, T, num_context), open_streams(ids, B, T, num_context, GPU)
        assert type(device) is not Streams
        for index in range(len(host)):
            expected, found = host.chunk(index), device.chunk(index)
            assert torch.equal(expected.input_LB, found.input_LB.cpu().long())
            assert torch.equal(expected.target_TB, found.target_TB.cpu().long())


def test_text_read_ahead_from_the_host_trains_the_same_model() -> None:
    expected = Training("relu-lstm", "bnce", GPU, "bf16", deterministic=True)
    found = Training("relu-lstm", "bnce", GPU, "bf16", deterministic=True)
    found.streams = PrefetchedStreams(markov_text(), B, T, found.model.num_context)
    random_state = torch.cuda.get_rng_state()
    expected.run(NUM_CHUNKS + 20)  # over the end of an epoch
    torch.cuda.set_rng_state(random_state)
    found.run(NUM_CHUNKS + 20)
    parameters = expected.parameters()
    assert all(torch.equal(tensor, parameters[name]) for name, tensor in found.parameters().items())


@pytest.mark.parametrize(("num_positions", "num_words", "size"), [(3, 50, 5), (9000, 40_000, 400)])
def test_normaliser_is_as_exact_as_float32(num_positions: int, num_words: int, size: int) -> None:
    torch.manual_seed(1)
    layer = OutputLayer(size, num_words, np.ones(num_words)).to(GPU)
    with torch.no_grad():
        layer.weight.normal_()
        hidden_ND = torch.randn(num_positions, size, device=GPU) / size**0.5 * 3
        exact_N = (hidden_ND.double() @ layer.weight.double().t() + layer.bias.double()).logsumexp(1)
        with float32_products(tf32=False):
            plain_N = (hidden_ND @ layer.weight.t() + layer.bias).logsumexp(1)
        error = float((layer.log_normaliser(hidden_ND) - exact_N).abs().max())
    # 16 bits of a number are kept of its 24; a logarithm of 1e-4 is a hundredth of a percent of a perplexity.
    assert error <= max(1e-4, 4 * float((plain_N - exact_N).abs().max()))


def test_step_costs_the_same_at_any_vocabulary() -> None:
    config = load_recipe("wiki", model="relu-lstm", loss="bnce")
    measured = bench([(config, 80_000), (config, 800_000)], GPU, num_rounds=5, round_seconds=0.1)["measurements"]
    small, large = (item["step_seconds"] for item in measured)
    assert large == pytest.approx(small, rel=0.1)
