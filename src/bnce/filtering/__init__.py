"""Documents with their perplexity: shards in, the same shards out with scores added, kept, dropped or sorted apart."""
