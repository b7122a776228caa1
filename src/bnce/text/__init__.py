"""Where words come from: files of every kind, cut into documents, sentences and words."""
