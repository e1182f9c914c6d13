"""Serves MiniStack and ends when standard input does.

The port and the interface come from GATEWAY_PORT and BIND_HOST. MORE_PACKAGES is a directory with optional packages.
"""

import os
import signal
import sys
import threading
import time


def await_owner():
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(2)
    os._exit(0)


threading.Thread(target=await_owner, name="owner", daemon=True).start()
sys.argv = ["ministack"]
sys.path += [d for d in [os.environ.get("MORE_PACKAGES")] if d]

from ministack.app import main  # noqa: E402 - the owner is watched while this loads

main()
