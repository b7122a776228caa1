"""A model as a beam search sees it: states that advance by a word, and the log-probabilities of the next words.

All logarithms are natural. A state stands for a whole history; it is never changed, so hypotheses may share one, and
any number of them go through the network side by side. `prefixes` scores whole lists of hypotheses with it.

Legend: T time steps, B states side by side, C context words of an n-gram body, L = C + T, D hidden, K words per state,
W different words, P different states.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from bnce.corpus.vocabulary import END
from bnce.errors import UserError, argument
from bnce.language_model import LanguageModel
from bnce.machine.precision import float32_products
from bnce.models import State as RecurrentState

# A sequence with more words is read by itself; of a very long one, so many words at a time.
LONG_WORDS = 64
PASS_WORDS = 2**12

Words = Tensor | Sequence[int] | Sequence[Sequence[int]]


# Numbers in the states of texts side by side: a Transformer has some for every word of its context. 512 MiB.
STATE_NUMBERS = 2**27


def num_side_by_side(model: LanguageModel, most: int) -> int:
    """Say how many texts may go through the network side by side, so that their states fit into memory."""
    per_state = sum(part.numel() for part in model.initial_state(1))
    return max(1, min(most, STATE_NUMBERS // max(1, per_state)))


class States:
    """B histories side by side: what the network needs to go on from each, and the hidden layer it has come to."""

    def __init__(self, context_CB: Tensor, recurrent: RecurrentState, hidden_BD: Tensor) -> None:
        self.context_CB, self.recurrent, self.hidden_BD = context_CB, recurrent, hidden_BD
        # Filled where it is asked for: at V = 800K one value costs as much as hundreds of steps of the network.
        self.log_normaliser_B = torch.full_like(hidden_BD[:, 0], torch.nan)

    def __len__(self) -> int:
        return len(self.hidden_BD)

    def select(self, place_B: Tensor) -> States:
        """Take some of the states, in any order, also repeatedly."""
        chosen = States(
            self.context_CB.index_select(1, place_B),
            tuple(part.index_select(1, place_B) for part in self.recurrent),
            self.hidden_BD.index_select(0, place_B),
        )
        chosen.log_normaliser_B = self.log_normaliser_B.index_select(0, place_B)
        return chosen


class State(NamedTuple):
    """One history: a place among states that were computed together."""

    states: States
    place: int


class Scorer:
    """Answers for one model; words are ids of its vocabulary."""

    def __init__(self, model: LanguageModel) -> None:
        self.model = model.eval()
        self._start: States | None = None

    @property
    def device(self) -> torch.device:
        """Where the network is, and tensors of words should be."""
        return self.model.embedding.device

    def start(self) -> State:
        """Give the state at the start of a sentence: after `</s>`, with nothing else behind it."""
        return State(self.start_states(), 0)

    def advance(self, states: Sequence[State], words: Words) -> list[State]:
        """Move each state on by one word, all of them in one pass through the network."""
        if not states:
            return []
        moved = self.advance_states(gather(states), self._words(states, words))
        return [State(moved, place) for place in range(len(states))]

    def read(self, states: Sequence[State], sequences: Sequence[Sequence[int]]) -> list[State]:
        """Move each state on by the words of a sequence of its own, those of one place side by side.

        A long sequence goes alone and in one pass: word by word it takes twenty times as long.
        """
        after = list(states)
        long = {number for number, sequence in enumerate(sequences) if len(sequence) > LONG_WORDS}
        for number in long:
            after[number] = self._read_long(after[number], sequences[number])
        short = [number for number in range(len(after)) if number not in long]
        for place in range(max((len(sequences[number]) for number in short), default=0)):
            going = [number for number in short if place < len(sequences[number])]
            moved = self.advance(
                [after[number] for number in going], [int(sequences[number][place]) for number in going]
            )
            for number, state in zip(going, moved, strict=True):
                after[number] = state
        return after

    def score(self, states: Sequence[State], words: Words, normalised: bool = False) -> Tensor:
        """Compute ln p of words after states: one each (B,) or several each (B, K).

        Unnormalised reads only the rows of these words. Normalised passes over the vocabulary once for each state
        that was never normalised before.
        """
        if not states:
            return torch.zeros(0, device=self.device)
        words_B = self._words(states, words, several=True)
        if normalised:
            self._normalise(states)
        side_by_side = gather(states)
        every_B = torch.arange(len(states), device=self.device)
        return self.score_words(side_by_side, every_B, words_B, normalised)

    @torch.inference_mode()
    def score_all(self, state: State, normalised: bool = False) -> Tensor:
        """Compute ln p of every word of the vocabulary (V,) after one state."""
        if not normalised:
            refuse_unnormalised(self.model)
        with float32_products(tf32=False):
            score_V = self.model.output.all_scores(state.states.hidden_BD[state.place : state.place + 1])[0]
        return score_V - (torch.logsumexp(score_V, 0) if normalised else self.model.output.log_z)

    def start_states(self) -> States:
        """Give the start of a sentence as states, of which there is one."""
        if self._start is None:
            with torch.inference_mode():
                context_CB = torch.full((self.model.num_context, 1), END, device=self.device)
                end_B = torch.full((1,), END, device=self.device)
                self._start = self._step(context_CB, self.model.initial_state(1), end_B)
        return self._start

    @torch.inference_mode()
    def advance_states(self, states: States, word_B: Tensor) -> States:
        """Move states that lie side by side on by one word each."""
        return self._step(states.context_CB, states.recurrent, word_B)

    @torch.inference_mode()
    def branch_states(self, states: States, parent_B: Tensor, word_B: Tensor) -> States:
        """Move the states at these places on by one word each, which is cheaper where states and words repeat."""
        body = self.model.body
        if not body.branches:
            return self.advance_states(states.select(parent_B), word_B)
        word_W, word_B = torch.unique(word_B, return_inverse=True)
        parent_P, parent_B = torch.unique(parent_B, return_inverse=True)
        before = tuple(part.index_select(1, parent_P) for part in states.recurrent)
        with float32_products(tf32=False):
            hidden_BD, after = body.branch(self.model.embedding.index_select(0, word_W), word_B, before, parent_B)
        return States(states.context_CB[:, :1].expand(0, len(word_B)), after, hidden_BD)

    @torch.inference_mode()
    def score_words(self, states: States, place_N: Tensor, words: Tensor, normalised: bool = False) -> Tensor:
        """Compute ln p of words (N,) or (N, K) after the states at these places; each state is normalised once."""
        output = self.model.output
        if not normalised:
            refuse_unnormalised(self.model)
        words_NK = words.reshape(len(place_N), -1)
        with float32_products(tf32=False):
            score_NK = output.scores(states.hidden_BD.index_select(0, place_N), words_NK)
            constant = self.log_normaliser(states)[place_N].unsqueeze(1) if normalised else output.log_z
        return (score_NK - constant).reshape(words.shape)

    @torch.inference_mode()
    def log_normaliser(self, states: States) -> Tensor:
        """Compute ln Z(context) of every state (B,), and keep it."""
        (missing,) = torch.nonzero(states.log_normaliser_B.isnan(), as_tuple=True)
        if len(missing):
            with float32_products(tf32=False):
                found = self.model.output.log_normaliser(states.hidden_BD.index_select(0, missing))
            states.log_normaliser_B[missing] = found
        return states.log_normaliser_B

    @torch.inference_mode()
    def _normalise(self, states: Sequence[State]) -> None:
        """Keep ln Z(context) with the very states it belongs to, which copies of them then have, too."""
        distinct = dict.fromkeys((state.states, state.place) for state in states)
        missing = [State(*pair) for pair in distinct if pair[0].log_normaliser_B[pair[1]].isnan()]
        if missing:
            for state, value in zip(missing, self.log_normaliser(gather(missing)), strict=True):
                state.states.log_normaliser_B[state.place] = value

    @torch.inference_mode()
    def _read_long(self, state: State, words: Sequence[int]) -> State:
        states = gather([state])
        word_T = torch.tensor(words, dtype=torch.long, device=self.device)
        check_ids(self.model, int(word_T.min()), int(word_T.max()))
        for part_T in word_T.split(PASS_WORDS):
            states = self._pass(states.context_CB, states.recurrent, part_T.unsqueeze(1))
        return State(states, 0)

    def _step(self, context_CB: Tensor, recurrent: RecurrentState, word_B: Tensor) -> States:
        return self._pass(context_CB, recurrent, word_B.unsqueeze(0))

    def _pass(self, context_CB: Tensor, recurrent: RecurrentState, word_TB: Tensor) -> States:
        input_LB = torch.cat([context_CB, word_TB])
        with float32_products(tf32=False):
            hidden_TBD, after = self.model(input_LB, recurrent)
        return States(input_LB[len(word_TB) :], after, hidden_TBD[-1])

    def _words(self, states: Sequence[State], words: Words, several: bool = False) -> Tensor:
        """Take words as a tensor, refusing what does not fit the states or the vocabulary."""
        shape = f"({len(states)},)" + (f" or ({len(states)}, k)" if several else "")
        try:
            given = torch.as_tensor(words, device=self.device)
        except (TypeError, ValueError) as error:
            raise UserError(f"The words are not a table of ids ({error}): give ids {shape}.") from error
        allowed = (1, 2) if several else (1,)
        if given.ndim not in allowed or len(given) != len(states) or given.is_floating_point():
            raise UserError(
                f"{len(states)} states and words of shape {tuple(given.shape)} do not fit: give ids {shape}."
            )
        given = given.long()
        if given.numel():
            check_ids(self.model, int(given.min()), int(given.max()))
        return given


def gather(states: Sequence[State]) -> States:
    """Lay states side by side, in their order."""
    places: dict[States, list[int]] = {}
    for order, state in enumerate(states):
        places.setdefault(state.states, []).append(order)
    with torch.inference_mode():
        device = states[0].states.hidden_BD.device
        parts = []
        for source, orders in places.items():
            chosen = [states[order].place for order in orders]
            whole = chosen == list(range(len(source)))
            parts.append(source if whole else source.select(torch.tensor(chosen, device=device)))
        if len(parts) == 1:
            return parts[0]
        side_by_side = [order for orders in places.values() for order in orders]
        return _concatenate(parts).select(torch.tensor(side_by_side, device=device).argsort())


def check_ids(model: LanguageModel, smallest: int, largest: int) -> None:
    """Refuse ids outside the vocabulary: a negative id would silently count from the end of a table."""
    vocab_size = model.output.vocab_size
    if smallest < 0 or largest >= vocab_size:
        raise UserError(
            f"The word ids go from {smallest} to {largest}, but the vocabulary has ids from 0 to {vocab_size - 1}."
        )


def refuse_unnormalised(model: LanguageModel) -> None:
    """Refuse unnormalised probabilities where nothing was learned or fitted that may replace the softmax sum."""
    if not model.output.normalises:
        raise UserError(
            f"This model was trained with the loss {model.output.loss_name} and has no constant Z: "
            f"use normalised probabilities ({argument('normalised', True)}), calibrate the run ('bnce calibrate'), or "
            f"train with {argument('loss', 'bnce')}."
        )


def _concatenate(sources: Sequence[States]) -> States:
    whole = States(
        torch.cat([source.context_CB for source in sources], dim=1),
        tuple(torch.cat(parts, dim=1) for parts in zip(*(source.recurrent for source in sources), strict=True)),
        torch.cat([source.hidden_BD for source in sources]),
    )
    whole.log_normaliser_B = torch.cat([source.log_normaliser_B for source in sources])
    return whole
