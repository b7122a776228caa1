"""Tables in, the same tables out with columns added: surprisal and what belongs to it, one word per row."""
