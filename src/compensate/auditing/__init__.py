"""Find the wrong labels of a data set, decide on them, and write the corrected data.

The parts are modules of their own, loaded when they are asked for: `page` draws the review page, `corrections` reads
the decisions made on it and applies them to the data.
"""
