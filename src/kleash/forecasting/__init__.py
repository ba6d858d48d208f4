"""Forecast: scored samples of the reference to the Frontier, before anyone trains."""
