# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""How Dynamo's runtime fails, as types. Each text is one line that names the cause."""

from __future__ import annotations


class RuntimeTrouble(Exception):
    """Dynamo's runtime did not do what it should."""


class RuntimeTooSlow(RuntimeTrouble):
    """A call did not end within its bound."""


class ServiceUnreachable(RuntimeTrouble):
    """etcd or NATS can't be reached."""


class PortUnavailable(RuntimeTrouble):
    """A port that the runtime was told to listen on is taken."""


class ServeFailed(RuntimeTrouble):
    """An endpoint could not be served, or is no longer."""


class RegistrationRefused(RuntimeTrouble):
    """The worker has been withdrawn: nothing registers any more (rule 123)."""


class WithdrawalFailed(RuntimeTrouble):
    """Some endpoints could not be unregistered."""
