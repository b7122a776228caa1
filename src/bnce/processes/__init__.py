"""One model in many processes: the rows of a step, and how their gradients travel."""
