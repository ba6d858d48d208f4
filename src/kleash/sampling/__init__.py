"""Scored samples from nothing: draw answers of a model or a server, have them judged, choose what to label."""
