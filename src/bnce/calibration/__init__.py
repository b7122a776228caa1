"""What unnormalised scores are divided by, fitted to a text after training."""

KINDS = ("constant", "head")
# At which ln Z is computed. Where its standard deviation is 0.35, its mean is then known to about 0.005, so PPLn to
# half a per cent; `bnce calibrate` prints the standard error. This takes half a minute on a CPU for 80,000 words.
MAX_WORDS = 20_000
