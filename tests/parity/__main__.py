# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""``python -m tests.parity``: build/parity.json and docs/parity.md; 1 if anything is missing.

``--check`` leaves the page as it is, and fails if it is out of date.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.parity.page import written
from tests.parity.record import record_roles
from tests.parity.roles import cases
from tests.parity.table import all_rows

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "parity.md"
OUTPUT = ROOT / "build" / "parity.json"


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.parity")
    parser.add_argument("--check", action="store_true", help="fail if the page is out of date")
    check = parser.parse_args().check
    for name in [name for name in os.environ if name.startswith(("DYN_", "SGLANG_"))]:
        del os.environ[name]
    os.environ["DYN_LOG"] = "error"
    rows = all_rows(record_roles())
    missing = [row.as_json() for row in rows if row.verdict == "missing"]
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(
        json.dumps({"missing": missing, "rows": [row.as_json() for row in rows]}, indent=1)
    )
    with tempfile.TemporaryDirectory() as folder:
        page = written(rows, cases(Path(folder)))
    stale = check and page != PAGE.read_text()
    if not check:
        PAGE.write_text(page)
    for one in missing:
        print("missing:", *(one[key] for key in ("role", "kind", "name", "incumbent", "ours")))
    if stale:
        print(f"{PAGE.relative_to(ROOT)} is out of date: make parity")
    verdicts = Counter(row.verdict for row in rows)
    print(f"{OUTPUT.relative_to(ROOT)}: {len(rows)} rows, {dict(verdicts)}")
    return int(bool(missing or stale))


if __name__ == "__main__":
    sys.exit(main())
