"""Networks that tunefarm makes itself, to try it with."""
