"""Every method is a short composition; :data:`METHODS` is the one table of them.

A new method is one function in the file of its target, with its row of the table above it.
"""

from compensate.methods.baseline import *
from compensate.methods.bootstrapping import *
from compensate.methods.class_perturbation import *
from compensate.methods.decision import *
from compensate.methods.feature import *
from compensate.methods.gradient import *
from compensate.methods.guessing import *
from compensate.methods.imbalance import *
from compensate.methods.label import *
from compensate.methods.logit import *
from compensate.methods.loss import *
from compensate.methods.loss_floor import *
from compensate.methods.margins import *
from compensate.methods.mixed import *
from compensate.methods.perturbation_network import *
from compensate.methods.plausible_labels import *
from compensate.methods.prediction import *
from compensate.methods.registry import METHODS as METHODS
from compensate.methods.registry import Method as Method
from compensate.methods.registry import find as find
from compensate.methods.robust_losses import *
from compensate.methods.self_paced import *
from compensate.methods.semantic import *
from compensate.methods.slack import *
from compensate.methods.smoothing import *
from compensate.methods.universal import *
from compensate.methods.views import *
from compensate.methods.weighting import *
