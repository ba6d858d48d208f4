"""What kleash shows: pages, charts and the moving dial."""
