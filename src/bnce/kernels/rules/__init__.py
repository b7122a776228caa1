"""The losses' rules: what is done between the two products of a block, in one visit to each row of it."""
