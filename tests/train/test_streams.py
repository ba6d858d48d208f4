"""The register of random streams: what a run drew yesterday it draws tomorrow."""

import pytest

from kleash.train.streams import Purpose, stream


def test_no_purpose_ever_changes_its_number():
    """A run that was stopped under one version goes on under the next; a renumbered stream would be another run."""
    numbers = [0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 20, 21, 22]
    assert [purpose.value for purpose in Purpose] == numbers
    assert [Purpose(number).name for number in (0, 3, 20)] == ["TABLES", "TRAINING", "REFERENCE"]
    assert stream(7, Purpose.TRAINING, 1, 2).random() == pytest.approx(0.8486831530438345, abs=1e-15)


def test_streams_of_other_purposes_seeds_and_places_differ():
    draws = [
        stream(seed, purpose, *which).random()
        for seed in (0, 1)
        for purpose in (Purpose.TRAINING, Purpose.EVALUATION)
        for which in ((), (0,), (1,), (1, 0))
    ]
    assert len(set(draws)) == len(draws)
