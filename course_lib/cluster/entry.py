"""Where every process of ours that is a fresh interpreter begins: first the lifeline, then the
imports, which may take a second on a busy machine.

python -m course_lib.cluster.entry MODULE LIFELINE ARGUMENTS...   calls MODULE.begin(held lifeline,
*ARGUMENTS)
"""

import importlib
import signal
import sys

from course_lib.cluster import lifeline

if __name__ == "__main__":
    module, reading_end, *arguments = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupted cell stops waiting, and we go on
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    held = lifeline.hold(int(reading_end))
    importlib.import_module(f"course_lib.cluster.{module}").begin(held, *arguments)
