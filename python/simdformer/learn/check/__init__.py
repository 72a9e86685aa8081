"""Is this array right, and if not, which mistake was made?

operation    the call that was meant, as arrays: `bind`
compare      the measure: how far off, row by row, and how far one may be
rounding     what rounding to a dtype can do to the steps of this call
search       which variations of the operation's program give this array
constants    which other value of a constant gives it
evidence     which of these is believed
shapes       what was done to the axes, where those are wrong
describe     what can be said where no mistake explains it; remarks: what else is worth knowing
report       the answer, for terminal and notebook
judge        all of these in order
entry        what the learner has handed over: `simdformer.check`
"""

from simdformer.learn.check.entry import check
from simdformer.learn.check.report import CheckError, Report

__all__ = ["CheckError", "Report", "check"]
