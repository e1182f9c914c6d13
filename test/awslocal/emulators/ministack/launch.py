"""Serves MiniStack and ends when standard input does.

The port and the interface come from GATEWAY_PORT and BIND_HOST.
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

from ministack.app import main  # noqa: E402 - the owner is watched while this loads

main()
