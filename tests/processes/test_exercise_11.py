"""The checks of exercise 11, on real processes."""

from tests.answers_11 import ANSWERS

test_wrong_answers_are_rejected_in_words = ANSWERS.rejected()
test_right_answers_pass = ANSWERS.accepted()
test_there_are_enough_of_each = ANSWERS.enough()
