"""Where does a learner's transformer go wrong first, and why?

aliases      which activation is meant by a name
axes         how the axes of an array lie
steps        the model as steps with known values; tensors: its weights as plain arrays
question     what one activation should be, after the learner's own last right ones
report       the answer, for terminal and notebook
judge        all of these in order: `simdformer.check_trace`
"""

from simdformer.learn.trace.judge import check_trace
from simdformer.learn.trace.report import TraceReport

__all__ = ["TraceReport", "check_trace"]
