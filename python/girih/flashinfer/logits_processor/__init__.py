"""flashinfer.logits_processor: a pipe of processors from logits to tokens.

A compiled pipe makes one call of the filters before a Sample and of that, and one of a Temperature and the Softmax after it.
"""

from .pipeline import LogitsPipe as LogitsPipe
from .processors import LegalizationError as LegalizationError
from .processors import LogitsProcessor as LogitsProcessor
from .processors import MinP as MinP
from .processors import Sample as Sample
from .processors import Softmax as Softmax
from .processors import Temperature as Temperature
from .processors import TopK as TopK
from .processors import TopP as TopP
from .types import TaggedTensor as TaggedTensor
from .types import TensorType as TensorType
