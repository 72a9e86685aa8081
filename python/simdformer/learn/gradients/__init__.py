"""Where do the gradients of a learner's transformer go wrong first, and why?

steps     the way back as steps with known values
names     which gradient is meant by a name, and how it lies
measure   whether one is right, up to rounding on all the way
whole     what was done to all of them: a factor, other labels
report    the answer, for terminal and notebook
judge     all of these in order: `simdformer.check_gradients`
step      loss, gradients, clipping and AdamW of one step: `simdformer.check_step`
"""

from simdformer.learn.gradients.judge import check_gradients
from simdformer.learn.gradients.report import GradientsReport
from simdformer.learn.gradients.step import check_step
from simdformer.learn.gradients.step_report import StepReport

__all__ = ["GradientsReport", "StepReport", "check_gradients", "check_step"]
