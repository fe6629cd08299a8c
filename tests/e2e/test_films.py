# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""A video worker on SGLang's real generator, behind the real frontend."""

from __future__ import annotations

import base64
from collections.abc import Callable

import pytest

from tests.e2e.served import Ending, Served
from tests.e2e.test_stopping import assert_clean
from trio_worker.quickstart.chat import post

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]


async def test_a_film_is_made(filmer: Served) -> None:
    payload = {
        "model": filmer.model,
        "prompt": "a cat",
        "size": "64x64",
        "response_format": "b64_json",
        "nvext": {"num_inference_steps": 1, "num_frames": 4, "fps": 4, "seed": 1},
    }
    answer = await post(filmer.port, "/v1/videos", payload)
    assert answer.status == 200, answer.errors
    assert answer.body["status"] == "completed", answer.body
    film = base64.b64decode(answer.body["data"][0]["b64_json"])
    assert film[4:8] == b"ftyp"


# The last here, not of the session: nobody else needs this cluster, and it takes memory.
def test_it_leaves_nothing(filmer: Served, end_cluster: Callable[[str], Ending]) -> None:
    assert_clean(end_cluster("filmer"))
