"""Nothing is ever called healthy: an ok says what it excluded."""

import gzip
import json
import re
from pathlib import Path

import pytest

from kleash.audit import CHECKS, LOG_CHECKS

FROZEN = Path(__file__).parents[1] / "frozen"
PRAISE = re.compile(r"\b(healthy|fine|well|good|correct|sound|safe|perfect|works|all right)\b", re.IGNORECASE)
RARE = {"UPGRADE", "ENTROPY", "AGREEMENT"}  # hardly a log of the frozen ones has what these need


@pytest.mark.parametrize(("kinds", "checks"), [(("dump_faults",), CHECKS), (("golden", "log_faults"), LOG_CHECKS)])
def test_every_ok_of_every_check_says_what_it_excluded(kinds, checks):
    rules = {check.code: check.rule for check in checks}
    seen = set()
    for kind in kinds:
        for name, answer in json.loads(gzip.decompress((FROZEN / f"{kind}.json.gz").read_bytes())).items():
            for finding in answer["findings"] if isinstance(answer, dict) else answer:
                if finding["status"] != "ok" or finding["code"] not in rules:
                    continue
                seen.add(finding["code"])
                assert finding["evidence"]["excluded"] == rules[finding["code"]], name
                assert not PRAISE.search(finding["message"]), finding["message"]
                assert len(finding["message"].split()) > 2, finding["message"]
    assert set(rules) - seen <= RARE | {"GAIN_BOUND", "GRADIENT"}
