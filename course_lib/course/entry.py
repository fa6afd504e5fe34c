"""Where the process that runs a learner's notebook begins: first the lifeline, then the imports,
which may take seconds on a busy machine.

python -m course_lib.course.entry LIFELINE REPORT NOTEBOOK TASKS...
"""

import importlib
import sys

from course_lib.cluster import lifeline

if __name__ == "__main__":
    reading_end, *arguments = sys.argv[1:]
    lifeline.hold(int(reading_end))
    importlib.import_module("course_lib.course.answers").main(*arguments)
