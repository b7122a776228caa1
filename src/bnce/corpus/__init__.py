"""From text to ids on disk: sources → normalise → vocabulary → store → prepare → batches."""
