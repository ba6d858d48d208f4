"""kleash inside other people's trainers."""
