"""A trainer run on worlds that can be enumerated, against the fixed point its settings imply and against the tilt."""
