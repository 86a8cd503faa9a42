"""DTensor: which placements an op takes and returns, from its line of shapes, its tags or a rule."""
