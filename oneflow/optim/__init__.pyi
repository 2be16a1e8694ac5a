"""Type stub made from the public table (oneflow/api) by docs/stubs.py."""

from oneflow.optim import lr_scheduler as lr_scheduler
from oneflow.optim import swa_utils as swa_utils
from oneflow.optim.adafactor import Adafactor as Adafactor
from oneflow.optim.adam import Adam as Adam
from oneflow.optim.adam import AdamW as AdamW
from oneflow.optim.adam import Adamax as Adamax
from oneflow.optim.adam import LAMB as LAMB
from oneflow.optim.adam import NAdam as NAdam
from oneflow.optim.adam import RAdam as RAdam
from oneflow.optim.adaptive import Adadelta as Adadelta
from oneflow.optim.adaptive import Adagrad as Adagrad
from oneflow.optim.adaptive import RMSprop as RMSprop
from oneflow.optim.adaptive import Rprop as Rprop
from oneflow.optim.lbfgs import LBFGS as LBFGS
from oneflow.optim.muon import Muon as Muon
from oneflow.optim.optimizer import Optimizer as Optimizer
from oneflow.optim.optimizer import ParamGroup as ParamGroup
from oneflow.optim.sgd import ASGD as ASGD
from oneflow.optim.sgd import SGD as SGD

