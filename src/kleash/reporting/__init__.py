"""Show it: sources laid over each other, figures (data first, drawing second), and one self-contained page."""
