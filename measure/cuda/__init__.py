"""What only GPUs need: their compilers, their clock, their graphs, one of paper."""
