"""Block-scaled FP8 and FP4: quantizers, packed cache rows, packed weights."""

from __future__ import annotations

from .formats import fake_quantize_fp4 as fake_quantize_fp4
from .formats import fake_quantize_fp4_e4m3 as fake_quantize_fp4_e4m3
from .formats import fake_quantize_fp8 as fake_quantize_fp8
from .formats import power_of_two as power_of_two
from .formats import quantize_fp4 as quantize_fp4
from .formats import quantize_fp4_e4m3 as quantize_fp4_e4m3
from .formats import quantize_fp8 as quantize_fp8
from .rows import decode_e2m1 as decode_e2m1
from .rows import pack_index_rows as pack_index_rows
from .rows import pack_main_rows as pack_main_rows
from .rows import pack_window_rows as pack_window_rows
from .rows import unpack_index_rows as unpack_index_rows
from .rows import unpack_main_rows as unpack_main_rows
from .rows import unpack_window_rows as unpack_window_rows
from .weights import dequantize_weight as dequantize_weight
