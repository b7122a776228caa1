"""Is a corpus, a run or an exported run as it was written? Every file is read through and compared with its hash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bnce.corpus.manifest import MANIFEST_FILE, Manifest, damaged, read_manifest
from bnce.corpus.store import COUNTS_FILE, VOCABULARY_FILE, Corpus, count_words, is_corpus, read_words
from bnce.corpus.vocabulary import Vocabulary
from bnce.errors import UserError
from bnce.measure.finding import Finding, look
from bnce.reading import digest_file
from bnce.runs.export_record import METADATA_FILE, check_file, is_exported, read_record
from bnce.spelling.model import SPELLING_FILE, SpellingModel


def examine_directory(path: Path) -> tuple[str, list[Finding]]:
    """Say whether a directory is a corpus, a run or an exported run, and look at every file of it."""
    if is_corpus(path):
        return "corpus", _examine_corpus(path)
    if (path / "config.toml").is_file():
        from bnce.measure.run_integrity import examine_run  # PyTorch comes with it

        return "run", examine_run(path)
    if is_exported(path):
        return "exported run", _examine_export(path)
    raise UserError(
        f"'{path}' is neither a corpus nor a run: it has no {MANIFEST_FILE}, no config.toml and no {METADATA_FILE}. "
        "Give a directory from 'bnce prepare', 'bnce train' or 'bnce export --to onnx'."
    )


def _examine_corpus(path: Path) -> list[Finding]:
    findings = [look(MANIFEST_FILE, _check_manifest, path)]
    if not findings[0].well:
        return findings  # nothing else is known
    manifest = read_manifest(path)
    words = [look(VOCABULARY_FILE, _check_corpus_words, path, manifest)]
    words += [look(file, _check_hash, path, file, digest) for file, digest in (manifest.pieces or {}).items()]
    if not all(one.well for one in words):
        hashed = ((f"{name}.npy", digest) for name, digest in manifest.hashes.items())
        return [*findings, *words, *(look(file, _check_hash, path, file, digest) for file, digest in hashed)]
    corpus = Corpus(path, read_words(path, manifest), manifest)
    splits = [look(f"{name}.npy", _check_split, corpus, name) for name in manifest.hashes]
    spelling = [look(SPELLING_FILE, _check_corpus_spelling, corpus)] if manifest.spelling_hash else []
    return [*findings, *words, *splits, look(COUNTS_FILE, _check_corpus_counts, corpus), *spelling]


def _check_manifest(path: Path) -> str:
    manifest = read_manifest(path)
    told = "checksum matches"
    if manifest.counts_hash is None:
        told = "written by an earlier version, which stored no checksum"
    return f"{len(manifest.statistics)} splits, {told}"


def _check_corpus_words(path: Path, manifest: Manifest) -> str:
    vocabulary = Vocabulary.read(path / VOCABULARY_FILE)
    if vocabulary.digest != manifest.vocabulary_digest or len(vocabulary) != manifest.vocab_size:
        raise damaged(path, f"{VOCABULARY_FILE} is not the vocabulary that the corpus was prepared with")
    return f"{len(vocabulary):,} {'words' if manifest.pieces is None else 'pieces'}, hash matches"


def _check_hash(path: Path, file: str, expected: str) -> str:
    if digest_file(path / file) != expected:
        raise damaged(path, f"{file} has changed since it was written")
    return "hash matches"


def _check_split(corpus: Corpus, name: str) -> str:
    return f"{len(corpus.split(name)):,} tokens, hash matches"


def _check_corpus_counts(corpus: Corpus) -> str:
    """Count again what counts.npy says, hash or no hash."""
    counts = corpus.target_counts
    if not np.array_equal(counts, count_words(corpus.split("train"), len(corpus.vocabulary))):
        raise damaged(corpus.directory, f"{COUNTS_FILE} does not count the words of train")
    return f"counts the {int(counts.sum()):,} tokens of train"


def _check_corpus_spelling(corpus: Corpus) -> str:
    assert corpus.spelling_file is not None
    return f"{check_spelling(corpus.spelling_file)}, hash matches"


def check_spelling(path: Path) -> str:
    """Read a spelling model, and say how large it is."""
    return f"{len(SpellingModel.read(path).ngram_N):,} n-grams of unknown words"


def _examine_export(path: Path) -> list[Finding]:
    findings = [look(METADATA_FILE, _check_record, path)]
    if not findings[0].well:
        return findings  # nothing else is known
    record = read_record(path)
    return [*findings, *(look(name, _check_exported, path, name, record) for name in record["sha256"])]


def _check_record(path: Path) -> str:
    record = read_record(path)
    return f"{record['model']} with {record['loss']}, hash matches"


def _check_exported(path: Path, name: str, record: dict[str, Any]) -> str:
    check_file(path, name, record)
    return "hash matches"
