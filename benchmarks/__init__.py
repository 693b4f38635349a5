"""Speed, memory and accuracy, beside other libraries and lower bounds; never part of the tests."""
