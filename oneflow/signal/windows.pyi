"""Type stub made from the public table (oneflow/api) by docs/stubs.py."""

from oneflow.functional.window_functions import bartlett as bartlett
from oneflow.functional.window_functions import blackman as blackman
from oneflow.functional.window_functions import cosine as cosine
from oneflow.functional.window_functions import exponential as exponential
from oneflow.functional.window_functions import gaussian as gaussian
from oneflow.functional.window_functions import general_cosine as general_cosine
from oneflow.functional.window_functions import general_hamming as general_hamming
from oneflow.functional.window_functions import hamming as hamming
from oneflow.functional.window_functions import hann as hann
from oneflow.functional.window_functions import kaiser as kaiser
from oneflow.functional.window_functions import nuttall as nuttall

