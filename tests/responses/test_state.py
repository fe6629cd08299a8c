# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""What the converters remember of a request: live engine ids, ended choices, the first token."""

import gc
import weakref
from collections.abc import Callable

import pytest
from dynamo.llm import HttpError
from dynamo.llm.exceptions import EngineShutdown

from tests.responses.chunks import chunk
from tests.responses.oracle import Chunk
from trio_worker.responses import (
    NativeResponses,
    PrefillResponses,
    Responses,
    TextResponses,
    TokenResponses,
    choice_index,
    wrap_native,
)

STOP = {"type": "stop"}
ABORT = {"type": "abort"}

Make = Callable[[int], Responses]
Wrap = Callable[[Chunk], Chunk]

MODES = [
    pytest.param(lambda n: TokenResponses(choices=n), dict, id="tokens"),
    pytest.param(lambda n: TextResponses(context_id="c", model="m", choices=n), dict, id="text"),
    pytest.param(lambda n: NativeResponses(choices=n), wrap_native, id="native"),
]


@pytest.mark.parametrize(("make", "wrap"), MODES)
def test_all_finished_waits_for_every_choice(make: Make, wrap: Wrap) -> None:
    """Rule 129."""
    responses = make(2)
    for made, expected in (
        (chunk([1], "a", index=0, rid="a"), False),
        (chunk([1], "a", index=1, rid="b", finish=STOP), False),
        (chunk([2], "b", index=0, rid="a"), False),
        (chunk([3], "c", index=0, rid="a", finish=ABORT), True),
    ):
        responses.convert(wrap(made), shutting_down=False)
        assert responses.all_finished is expected


@pytest.mark.parametrize(("make", "wrap"), MODES)
def test_one_choice_that_ends_twice_is_one_choice(make: Make, wrap: Wrap) -> None:
    responses = make(2)
    for _ in range(2):
        responses.convert(wrap(chunk([1], "a", index=1, finish=STOP)), shutting_down=False)
    assert not responses.all_finished


@pytest.mark.parametrize(("make", "wrap"), MODES)
def test_a_final_chunk_that_was_not_sent_finishes_nothing(make: Make, wrap: Wrap) -> None:
    responses = make(1)
    responses.observe(wrap(chunk([1], "a", finish=STOP)))
    assert not responses.all_finished
    with pytest.raises(EngineShutdown):
        responses.convert(wrap(chunk([1], "a", finish=ABORT)), shutting_down=True)
    assert not responses.all_finished


@pytest.mark.parametrize(("make", "wrap"), MODES[:2])
def test_an_error_finishes_nothing(make: Make, wrap: Wrap) -> None:
    responses = make(1)
    with pytest.raises(HttpError):
        responses.convert(
            wrap(chunk([1], "a", finish={**ABORT, "status_code": 500})), shutting_down=False
        )
    assert not responses.all_finished


@pytest.mark.parametrize(
    "responses",
    [TokenResponses(uploads=True), TextResponses(context_id="c", model="m", uploads=True)],
    ids=["tokens", "text"],
)
def test_with_uploads_a_choice_has_ended_after_its_upload(responses: Responses) -> None:
    ordinary, final = chunk([1], "a"), chunk([2], "b", finish=STOP, index=0)
    assert not responses.upload_due(ordinary)
    responses.convert(ordinary, shutting_down=False)
    assert ordinary["meta_info"] == {}
    assert not responses.upload_due(ordinary)
    assert responses.upload_due(final)
    responses.convert(final, shutting_down=False)
    assert responses.upload_due(final)
    assert final["meta_info"] != {}
    assert not responses.all_finished
    responses.uploaded(final, shutting_down=True)
    assert final["meta_info"] == {}
    assert responses.all_finished


def test_without_uploads_none_is_due() -> None:
    assert not TokenResponses().upload_due(chunk([1], finish=STOP))
    assert not NativeResponses().upload_due(wrap_native(chunk([1], finish=STOP)))


@pytest.mark.parametrize(("make", "wrap"), MODES)
def test_ids_live_until_their_finish_reason(make: Make, wrap: Wrap) -> None:
    """Rules 5, 51, 64, 65."""
    responses = make(3)
    responses.convert(wrap(chunk([1], "a", index=0, rid="a")), shutting_down=False)
    responses.convert(wrap(chunk([], "", index=1, rid="b")), shutting_down=False)
    responses.observe(wrap(chunk([1], "a", index=2, rid="c")))
    assert responses.unfinished_ids == {"a", "b", "c"}
    responses.convert(wrap(chunk([1], "a", index=0, rid="a", finish=STOP)), shutting_down=False)
    responses.observe(wrap(chunk([1], "a", index=2, rid="c", finish=STOP)))
    assert responses.unfinished_ids == {"b"}


@pytest.mark.parametrize(("make", "wrap"), MODES)
def test_an_aborted_id_that_speaks_again_is_back(make: Make, wrap: Wrap) -> None:
    responses = make(1)
    responses.convert(wrap(chunk([1], "a", rid="a")), shutting_down=False)
    responses.unfinished_ids.clear()
    responses.observe(wrap(chunk([1], "a", rid="a")))
    assert responses.unfinished_ids == {"a"}
    responses.unfinished_ids.clear()
    responses.convert(wrap(chunk([1], "a", rid="a")), shutting_down=False)
    assert responses.unfinished_ids == {"a"}


def test_choice_index() -> None:
    assert choice_index({}) == 0
    assert choice_index({"index": None}) == 0
    assert choice_index({"index": 3}) == 3


class Owner:
    """Counts, and can be watched until it is freed."""

    def __init__(self) -> None:
        self.count = 0

    def notify(self) -> None:
        self.count += 1


@pytest.mark.parametrize(
    ("make", "wrap"),
    [
        pytest.param(lambda f: TokenResponses(notify_first_token=f), dict, id="tokens"),
        pytest.param(
            lambda f: TextResponses(context_id="c", model="m", notify_first_token=f),
            dict,
            id="text",
        ),
        pytest.param(lambda f: NativeResponses(notify_first_token=f), wrap_native, id="native"),
    ],
)
def test_the_first_token_is_notified_once_and_its_owner_let_go(
    make: Callable[[Callable[[], None]], Responses], wrap: Wrap
) -> None:
    """A request is freed by reference counting when it ends (rule 55)."""
    owner = Owner()
    alive = weakref.ref(owner)
    responses = make(owner.notify)
    responses.convert(wrap(chunk([])), shutting_down=False)
    responses.observe(wrap(chunk([1], "a")))
    assert owner.count == 0
    responses.convert(wrap(chunk([1], "a")), shutting_down=False)
    responses.convert(wrap(chunk([2], "b", finish=STOP)), shutting_down=False)
    assert owner.count == 1
    gc.disable()
    try:
        del owner
        assert alive() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "responses",
    [
        TokenResponses(),
        TextResponses(context_id="c", model="m"),
        NativeResponses(),
        PrefillResponses(),
    ],
    ids=lambda responses: type(responses).__name__,
)
def test_no_instance_has_a_dict(responses: Responses) -> None:
    assert not hasattr(responses, "__dict__")
