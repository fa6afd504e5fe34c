"""The cards. `course_lib.widgets` offers every public class in these files."""
