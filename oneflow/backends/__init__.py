"""`flow.backends`: the switches of device libraries that scripts set. Reading one tells the
truth; setting one that changes nothing here warns once.
"""

from oneflow.backends import cuda as cuda
from oneflow.backends import cudnn as cudnn
from oneflow.backends import mps as mps
from oneflow.surfaces import accept_paths

accept_paths(__name__)
