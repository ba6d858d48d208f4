"""Which modules the doctests leave alone: those that need torch to be imported."""

collect_ignore = ["kleash/integrations/measure.py", "kleash/integrations/trl.py"]
