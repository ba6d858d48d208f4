"""Every stream of random numbers in training has a key: what it is for, and which of its kind it is.

No generator is carried along, so a run that goes on after a kill draws what it would have drawn, and no draw depends on
what else is trained.
"""

from __future__ import annotations

from enum import IntEnum, unique

import numpy as np

__all__ = ["Purpose", "stream"]


@unique
class Purpose(IntEnum):
    """What a stream of random numbers is for; a number, once given, is never given again."""

    TABLES = 0  # answers of tabular policies while they train
    SHOWN_TABLES = 1  # their answers shown afterwards
    ADAPTERS = 2  # the adapters' start
    TRAINING = 3  # answers to train on
    EVALUATION = 4  # answers to measure by
    LABELS = 5  # which of a pair wins, for dpo
    ORDER = 6  # the prompts' order within a pass
    OWN = 7  # answers of the trained policies for the forecast between their betas
    HOUSE_RECIPES = 10  # what the recipes' reference is taught
    HOUSE_WEIGHTS = 11  # its weights at the start
    HOUSE_BATCHES = 12  # the order it is taught in
    REFERENCE = 20  # answers of the reference for the forecast, and answers shown
    SAMPLES = 21  # answers of kleash.sample
    SHEET = 22  # which of them are labelled by hand


def stream(seed: int, purpose: Purpose, *which: int) -> np.random.Generator:
    """The stream of a purpose, a seed and further whole numbers."""
    return np.random.default_rng(np.random.SeedSequence(entropy=seed, spawn_key=(purpose, *which)))
