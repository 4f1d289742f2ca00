"""Short walks through the worked examples of five texts on decoders, and checks of every figure that they print.

catalog.py      the lessons by name; knows nothing heavy
classes.py      from a name to a lesson
lesson.py       what a lesson is: a document to read, and checks
check.py        a figure, what came out, and whether they agree
report.py       the checks of a lesson, and what they amount to
figures.py      numbers as tables with the tokens beside them

Then one file or folder a lesson. What is printed in a text lies in its `printed.py` (or at the top of its file);
everything else is computed, by the model where it can, by the textbook where it cannot, by both where both can.
"""
