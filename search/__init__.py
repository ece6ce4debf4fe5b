"""Design spaces and the strategies that propose candidates from them."""
