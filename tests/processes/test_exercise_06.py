"""The checks of exercise 06, on real processes."""

from tests.answers_06 import ANSWERS

test_wrong_answers_are_rejected_in_words = ANSWERS.rejected()
test_right_answers_pass = ANSWERS.accepted()
test_there_are_enough_of_each = ANSWERS.enough(8, 3, "leave_early", "bucketed")
test_right_choices_are_enough = ANSWERS.enough(0, 3, "best_size")
