"""One model in many processes: who owns which rows of the tables, and how rows and gradients travel."""
