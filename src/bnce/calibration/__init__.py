"""What unnormalised scores are divided by, fitted to a text after training."""

KINDS = ("constant", "head")
# At which ln Z is computed: its mean is then known to 0.005 where its standard deviation is 0.35, so PPLn to half a
# per cent, in seconds on a CPU where the vocabulary has 80,000 words.
MAX_WORDS = 20_000
