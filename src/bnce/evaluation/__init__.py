"""How good a model is: PPLn, PPLf, ln Z, and their detail."""
