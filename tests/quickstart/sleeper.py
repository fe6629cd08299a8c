# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""A stand-in for a worker that never gets ready: it takes any arguments and waits for SIGTERM."""

import signal
import sys

if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    print("Load weight begin", flush=True)
    signal.sigwait({signal.SIGTERM})
    sys.exit(0)
