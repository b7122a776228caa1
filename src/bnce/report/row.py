"""One run's line in the table, as raw numbers whose names bear their units."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Row:
    """What the table and JSON say of one run; None is what the run did not record."""

    label: str
    run: str
    model: str
    loss: str
    num_noise: int
    ppl_n: float | None
    ppl_f: float | None
    ppl_f_no_unk: float | None
    # Where each sentence is scored for itself; all others are in context.
    ppl_n_by_sentence: float | None
    ppl_f_by_sentence: float | None
    bits_per_byte: float | None
    words_per_second: float | None
    num_parameters: int | None
    # These four, and the last two, are known only beside other runs.
    speedup_over_softmax: float | None = None
    # The quality is to be reached on validation; None without a softmax run to be as good as.
    softmax_quality_ppl_f: float | None = None
    seconds_to_softmax_quality: float | None = None
    reached_at_first_evaluation: bool = False  # so that those seconds are the most it can have taken
    log_z_mean_nats: float | None
    log_z_std_nats: float | None
    log_z_constant_nats: float | None
    epochs: float | None
    train_seconds: float | None
    train_tokens: int | None
    peak_memory_bytes: int | None
    corpus: str | None
    split: str
    num_tokens: int | None
    oov_share: float | None  # of words, sentence ends left out
    text_sha256: str | None  # of the ids that the perplexities were measured on
    vocab_size: int | None
    vocabulary_digest: str | None
    device: str | None
    torch: str | None
    bnce: str | None
    commit: str | None
    seed: int | None
    command: str | None
    status: str | None
    comparable: bool = True
    difference: str | None = None

    @property
    def shown(self) -> str:
        """The label with its marks: figures from validation, and not comparable with the other rows."""
        return f"{self.label}{' (valid)' if self.split == 'valid' else ''}{' †' if not self.comparable else ''}"
