"""The checks of the exercises, a file `NN_name.py` for each notebook: its tasks, with their hints,
their judges, and the mistakes that are recognised. `course_lib.course` finds and runs them.
"""
