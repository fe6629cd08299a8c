# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""trio_worker.roles.registry: nobody has to stay with the incumbent."""

from __future__ import annotations

import pytest

import tests.fakes.heavy  # noqa: F401 (SGLang has to be imported before Trio runs)
from trio_worker import cli
from trio_worker.roles import Role
from trio_worker.roles.registry import implementation_of


@pytest.mark.parametrize("role", list(cli.Role))
def test_every_role_is_built(role: cli.Role) -> None:
    assert isinstance(implementation_of(role), Role)
