"""Compensation methods. :data:`METHODS` is the table of all of them.

A method is one function in the file of its target, with its row of the table as a decorator.
"""

from compensate.methods.composition import find as find
from compensate.methods.feature import *
from compensate.methods.gradient import *
from compensate.methods.imbalance import *
from compensate.methods.label import *
from compensate.methods.language import *
from compensate.methods.logit import *
from compensate.methods.loss import *
from compensate.methods.mixed import *
from compensate.methods.prediction import *
from compensate.methods.registry import METHODS as METHODS
from compensate.methods.registry import Method as Method
from compensate.methods.robust import *
from compensate.methods.weighting import *
