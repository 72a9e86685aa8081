"""`sf.look`: a page that shows a model reading one text."""

from simdformer.interpret.page.look import Page, look

__all__ = ["Page", "look"]
__dir__ = __all__.copy  # what dir() and completion show
