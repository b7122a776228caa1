"""Records in, the same records out with columns added: perplexities of documents, surprisals of words in tables."""
