"""What torchrun starts in each process, as far as the first all-reduce: `torchrun ...

with_torchrun.py FOLDER`.
"""

from __future__ import annotations

import os
import sys

import first_all_reduce

if __name__ == "__main__":
    first_all_reduce.stamp("torch", sys.argv[1], int(os.environ["RANK"]))
    sys.stdin.read()  # stay until whoever measures closes it
    os._exit(0)
