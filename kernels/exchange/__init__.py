"""Expert exchange (dispatch and combine) between the GPUs of one host through peer memory."""

from __future__ import annotations

from .arrivals import Arrivals as Arrivals
from .buffers import Buffers as Buffers
from .dispatch import copy_blocks as copy_blocks
from .dispatch import copy_tokens as copy_tokens
from .dispatch import end_round as end_round
from .dispatch import make_heads as make_heads
from .dispatch import receive_tokens as receive_tokens
from .dispatch import sendable as sendable
from .dispatch import token_block as token_block
from .layout import ExchangeLayout as ExchangeLayout
