# SPDX-License-Identifier: Apache-2.0
# pyarrow.compute: the first argument decides the result (array, chunked array, scalar or expression); a mixture that
# Arrow would allow in another order is refused here, so that a result never has another class than its type says.
from collections.abc import Sequence
from typing import Any, Literal, TypeVar, overload

from pyarrow.lib import (
    Array,
    BinaryArray,
    BooleanArray,
    ChunkedArray,
    DataType,
    MemoryPool,
    RecordBatch,
    Scalar,
    StringArray,
    StructArray,
    StructScalar,
    Table,
    TimestampArray,
    _PyValue,
    _TypeLike,
    _Unit,
    _Weakrefable,
)

_V = TypeVar("_V", Array, ChunkedArray, Scalar, Expression, Array | ChunkedArray)
# What is no array, where an array has an overload of its own.
_W = TypeVar("_W", ChunkedArray, Scalar, Expression)
# Kernels that keep the class of an array too.
_K = TypeVar(
    "_K",
    StringArray,
    BinaryArray,
    BooleanArray,
    TimestampArray,
    Array,
    ChunkedArray,
    Scalar,
    Expression,
    Array | ChunkedArray,
)
_T = TypeVar(
    "_T", StringArray, BinaryArray, BooleanArray, Array, ChunkedArray, RecordBatch, Table, Array | ChunkedArray
)

class Expression(_Weakrefable):
    def equals(self, other: Expression) -> bool: ...
    def is_null(self, nan_is_null: bool = False) -> Expression: ...
    def is_valid(self) -> Expression: ...
    def is_nan(self) -> Expression: ...
    def isin(self, values: Array | Sequence[Any]) -> Expression: ...
    def cast(self, type: DataType | None = None, safe: bool | None = None, options: Any = None) -> Expression: ...
    def __and__(self, other: Expression, /) -> Expression: ...
    def __or__(self, other: Expression, /) -> Expression: ...
    def __invert__(self) -> Expression: ...
    def __eq__(self, other: object, /) -> Expression: ...  # type: ignore[override]
    def __ne__(self, other: object, /) -> Expression: ...  # type: ignore[override]
    def __lt__(self, other: object, /) -> Expression: ...
    def __le__(self, other: object, /) -> Expression: ...
    def __gt__(self, other: object, /) -> Expression: ...
    def __ge__(self, other: object, /) -> Expression: ...

class CastOptions(_Weakrefable):
    def __init__(
        self,
        target_type: DataType | None = None,
        *,
        allow_int_overflow: bool | None = None,
        allow_time_truncate: bool | None = None,
        allow_time_overflow: bool | None = None,
        allow_decimal_truncate: bool | None = None,
        allow_float_truncate: bool | None = None,
        allow_invalid_utf8: bool | None = None,
    ) -> None: ...
    @staticmethod
    def safe(target_type: DataType | None = None) -> CastOptions: ...
    @staticmethod
    def unsafe(target_type: DataType | None = None) -> CastOptions: ...

def field(*name_or_index: Any) -> Expression: ...
def scalar(value: Any) -> Expression: ...
def call_function(
    name: str,
    args: Sequence[Any],
    options: Any = None,
    memory_pool: MemoryPool | None = None,
    length: int | None = None,
) -> Any: ...
def cast(
    arr: _V,
    target_type: _TypeLike | None = None,
    safe: bool | None = None,
    options: CastOptions | None = None,
    memory_pool: MemoryPool | None = None,
) -> _V: ...
def fill_null(values: _K, fill_value: _K | Scalar | _PyValue) -> _K: ...
def index(
    data: Array | ChunkedArray,
    value: Any,
    start: int | None = None,
    end: int | None = None,
    *,
    memory_pool: MemoryPool | None = None,
) -> Scalar: ...
def take(
    data: _T, indices: Array | ChunkedArray, *, boundscheck: bool = True, memory_pool: MemoryPool | None = None
) -> _T: ...
def filter(
    input: _T,
    selection_filter: Array | ChunkedArray | Expression,
    /,
    null_selection_behavior: Literal["drop", "emit_null"] = "drop",
    *,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> _T: ...
def drop_null(input: _T, /, *, memory_pool: MemoryPool | None = None) -> _T: ...
def shift_right(x: _V, y: _V | Scalar | _PyValue, /, *, memory_pool: MemoryPool | None = None) -> _V: ...
def sort_indices(
    input: Array | ChunkedArray | RecordBatch | Table,
    /,
    sort_keys: Sequence[tuple[str, str]] = (),
    *,
    null_placement: Literal["at_start", "at_end"] | None = None,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> Array: ...
def make_struct(
    *args: _V,
    field_names: Sequence[str] = (),
    field_nullability: Sequence[bool] | None = None,
    field_metadata: object = None,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> _V: ...

# -- element by element

def abs(x: _V, /, *, memory_pool: MemoryPool | None = None) -> _V: ...
def add(x: _V, y: _V | Scalar | _PyValue, /, *, memory_pool: MemoryPool | None = None) -> _V: ...
def add_checked(x: _V, y: _V | Scalar | _PyValue, /, *, memory_pool: MemoryPool | None = None) -> _V: ...
@overload
def and_(x: Array, y: Array | Scalar | _PyValue, /, *, memory_pool: MemoryPool | None = None) -> BooleanArray: ...
@overload
def and_(x: _W, y: _W | Scalar | _PyValue, /, *, memory_pool: MemoryPool | None = None) -> _W: ...
@overload
def and_kleene(x: Array, y: Array | Scalar | _PyValue, /, *, memory_pool: MemoryPool | None = None) -> BooleanArray: ...
@overload
def and_kleene(x: _W, y: _W | Scalar | _PyValue, /, *, memory_pool: MemoryPool | None = None) -> _W: ...
@overload
def and_not(x: Array, y: Array | Scalar | _PyValue, /, *, memory_pool: MemoryPool | None = None) -> BooleanArray: ...
@overload
def and_not(x: _W, y: _W | Scalar | _PyValue, /, *, memory_pool: MemoryPool | None = None) -> _W: ...
@overload
def and_not_kleene(
    x: Array, y: Array | Scalar | _PyValue, /, *, memory_pool: MemoryPool | None = None
) -> BooleanArray: ...
@overload
def and_not_kleene(x: _W, y: _W | Scalar | _PyValue, /, *, memory_pool: MemoryPool | None = None) -> _W: ...
def ascii_lower(strings: _K, /, *, memory_pool: MemoryPool | None = None) -> _K: ...
def ascii_ltrim(
    strings: _K, /, characters: str, *, options: object = None, memory_pool: MemoryPool | None = None
) -> _K: ...
def ascii_ltrim_whitespace(strings: _K, /, *, memory_pool: MemoryPool | None = None) -> _K: ...
def ascii_rtrim(
    strings: _K, /, characters: str, *, options: object = None, memory_pool: MemoryPool | None = None
) -> _K: ...
def ascii_rtrim_whitespace(strings: _K, /, *, memory_pool: MemoryPool | None = None) -> _K: ...
def ascii_split_whitespace(
    strings: _V,
    /,
    *,
    max_splits: int | None = None,
    reverse: bool = False,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> _V: ...
def ascii_trim(
    strings: _K, /, characters: str, *, options: object = None, memory_pool: MemoryPool | None = None
) -> _K: ...
def ascii_trim_whitespace(strings: _K, /, *, memory_pool: MemoryPool | None = None) -> _K: ...
def ascii_upper(strings: _K, /, *, memory_pool: MemoryPool | None = None) -> _K: ...
def assume_timezone(
    timestamps: _K,
    /,
    timezone: str,
    *,
    ambiguous: Literal["raise", "earliest", "latest"] = "raise",
    nonexistent: Literal["raise", "earliest", "latest"] = "raise",
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> _K: ...
def binary_join(strings: _V, separator: _V | Scalar | _PyValue, /, *, memory_pool: MemoryPool | None = None) -> _V: ...
def binary_join_element_wise(
    *strings: _K,
    null_handling: Literal["emit_null", "skip", "replace"] = "emit_null",
    null_replacement: str = "",
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> _K: ...
def binary_length(strings: _V, /, *, memory_pool: MemoryPool | None = None) -> _V: ...
def binary_repeat(
    strings: _V, num_repeats: _V | Scalar | _PyValue, /, *, memory_pool: MemoryPool | None = None
) -> _V: ...
def binary_replace_slice(
    strings: _V,
    /,
    start: int,
    stop: int | None,
    replacement: str,
    *,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> _V: ...
def binary_reverse(strings: _V, /, *, memory_pool: MemoryPool | None = None) -> _V: ...
def binary_slice(
    strings: _V,
    /,
    start: int,
    stop: int | None = None,
    step: int = 1,
    *,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> _V: ...
def bit_wise_xor(x: _V, y: _V | Scalar | _PyValue, /, *, memory_pool: MemoryPool | None = None) -> _V: ...
def case_when(cond: _K, /, *cases: _K | Scalar | _PyValue, memory_pool: MemoryPool | None = None) -> _K: ...
def ceil(x: _V, /, *, memory_pool: MemoryPool | None = None) -> _V: ...
def ceil_temporal(
    timestamps: _K,
    /,
    multiple: float = 1,
    unit: str = "day",
    *,
    week_starts_monday: bool = True,
    ceil_is_strictly_greater: bool = False,
    calendar_based_origin: bool = False,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> _K: ...
def coalesce(*values: _K, memory_pool: MemoryPool | None = None) -> _K: ...
def count_substring(
    strings: _V,
    /,
    pattern: str,
    *,
    ignore_case: bool = False,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> _V: ...
def count_substring_regex(
    strings: _V,
    /,
    pattern: str,
    *,
    ignore_case: bool = False,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> _V: ...
def day(values: _V, /, *, memory_pool: MemoryPool | None = None) -> _V: ...
def day_of_week(
    values: _V,
    /,
    *,
    count_from_zero: bool = True,
    week_start: int = 1,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> _V: ...
def day_of_year(values: _V, /, *, memory_pool: MemoryPool | None = None) -> _V: ...
def divide(dividend: _V, divisor: _V | Scalar | _PyValue, /, *, memory_pool: MemoryPool | None = None) -> _V: ...
@overload
def ends_with(
    strings: Array,
    /,
    pattern: str,
    *,
    ignore_case: bool = False,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> BooleanArray: ...
@overload
def ends_with(
    strings: _W,
    /,
    pattern: str,
    *,
    ignore_case: bool = False,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> _W: ...
@overload
def equal(x: Array, y: Array | Scalar | _PyValue, /, *, memory_pool: MemoryPool | None = None) -> BooleanArray: ...
@overload
def equal(x: _W, y: _W | Scalar | _PyValue, /, *, memory_pool: MemoryPool | None = None) -> _W: ...
def extract_regex(
    strings: _V, /, pattern: str, *, options: object = None, memory_pool: MemoryPool | None = None
) -> _V: ...
def find_substring(
    strings: _V,
    /,
    pattern: str,
    *,
    ignore_case: bool = False,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> _V: ...
def find_substring_regex(
    strings: _V,
    /,
    pattern: str,
    *,
    ignore_case: bool = False,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> _V: ...
def floor(x: _V, /, *, memory_pool: MemoryPool | None = None) -> _V: ...
def floor_temporal(
    timestamps: _K,
    /,
    multiple: float = 1,
    unit: str = "day",
    *,
    week_starts_monday: bool = True,
    ceil_is_strictly_greater: bool = False,
    calendar_based_origin: bool = False,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> _K: ...
@overload
def greater(x: Array, y: Array | Scalar | _PyValue, /, *, memory_pool: MemoryPool | None = None) -> BooleanArray: ...
@overload
def greater(x: _W, y: _W | Scalar | _PyValue, /, *, memory_pool: MemoryPool | None = None) -> _W: ...
@overload
def greater_equal(
    x: Array, y: Array | Scalar | _PyValue, /, *, memory_pool: MemoryPool | None = None
) -> BooleanArray: ...
@overload
def greater_equal(x: _W, y: _W | Scalar | _PyValue, /, *, memory_pool: MemoryPool | None = None) -> _W: ...
def hour(values: _V, /, *, memory_pool: MemoryPool | None = None) -> _V: ...
def if_else(
    cond: _V, left: _V | Scalar | _PyValue, right: _V | Scalar | _PyValue, /, *, memory_pool: MemoryPool | None = None
) -> _V: ...
def index_in(
    values: _V,
    /,
    value_set: Array | ChunkedArray,
    *,
    skip_nulls: bool = False,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> _V: ...
@overload
def invert(values: Array, /, *, memory_pool: MemoryPool | None = None) -> BooleanArray: ...
@overload
def invert(values: _W, /, *, memory_pool: MemoryPool | None = None) -> _W: ...
@overload
def is_finite(values: Array, /, *, memory_pool: MemoryPool | None = None) -> BooleanArray: ...
@overload
def is_finite(values: _W, /, *, memory_pool: MemoryPool | None = None) -> _W: ...
@overload
def is_in(
    values: Array,
    /,
    value_set: Array | ChunkedArray,
    *,
    skip_nulls: bool = False,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> BooleanArray: ...
@overload
def is_in(
    values: _W,
    /,
    value_set: Array | ChunkedArray,
    *,
    skip_nulls: bool = False,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> _W: ...
@overload
def is_inf(values: Array, /, *, memory_pool: MemoryPool | None = None) -> BooleanArray: ...
@overload
def is_inf(values: _W, /, *, memory_pool: MemoryPool | None = None) -> _W: ...
@overload
def is_nan(values: Array, /, *, memory_pool: MemoryPool | None = None) -> BooleanArray: ...
@overload
def is_nan(values: _W, /, *, memory_pool: MemoryPool | None = None) -> _W: ...
@overload
def is_null(
    values: Array, /, *, nan_is_null: bool = False, options: object = None, memory_pool: MemoryPool | None = None
) -> BooleanArray: ...
@overload
def is_null(
    values: _W, /, *, nan_is_null: bool = False, options: object = None, memory_pool: MemoryPool | None = None
) -> _W: ...
@overload
def is_valid(values: Array, /, *, memory_pool: MemoryPool | None = None) -> BooleanArray: ...
@overload
def is_valid(values: _W, /, *, memory_pool: MemoryPool | None = None) -> _W: ...
@overload
def less(x: Array, y: Array | Scalar | _PyValue, /, *, memory_pool: MemoryPool | None = None) -> BooleanArray: ...
@overload
def less(x: _W, y: _W | Scalar | _PyValue, /, *, memory_pool: MemoryPool | None = None) -> _W: ...
@overload
def less_equal(x: Array, y: Array | Scalar | _PyValue, /, *, memory_pool: MemoryPool | None = None) -> BooleanArray: ...
@overload
def less_equal(x: _W, y: _W | Scalar | _PyValue, /, *, memory_pool: MemoryPool | None = None) -> _W: ...
def list_element(lists: _V, index: _V | Scalar | _PyValue, /, *, memory_pool: MemoryPool | None = None) -> _V: ...
def list_slice(
    lists: _V,
    /,
    start: int,
    stop: int | None = None,
    step: int = 1,
    return_fixed_size_list: bool | None = None,
    *,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> _V: ...
def list_parent_indices(lists: Array, /, *, memory_pool: MemoryPool | None = None) -> Array: ...
def list_value_length(lists: _V, /, *, memory_pool: MemoryPool | None = None) -> _V: ...
def local_timestamp(values: _V, /, *, memory_pool: MemoryPool | None = None) -> _V: ...
def map_lookup(
    container: _V,
    /,
    query_key: Any,
    occurrence: Literal["first", "last", "all"],
    *,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> _V: ...
@overload
def match_like(
    strings: Array,
    /,
    pattern: str,
    *,
    ignore_case: bool = False,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> BooleanArray: ...
@overload
def match_like(
    strings: _W,
    /,
    pattern: str,
    *,
    ignore_case: bool = False,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> _W: ...
@overload
def match_substring(
    strings: Array,
    /,
    pattern: str,
    *,
    ignore_case: bool = False,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> BooleanArray: ...
@overload
def match_substring(
    strings: _W,
    /,
    pattern: str,
    *,
    ignore_case: bool = False,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> _W: ...
@overload
def match_substring_regex(
    strings: Array,
    /,
    pattern: str,
    *,
    ignore_case: bool = False,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> BooleanArray: ...
@overload
def match_substring_regex(
    strings: _W,
    /,
    pattern: str,
    *,
    ignore_case: bool = False,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> _W: ...
def max_element_wise(
    *args: _V, skip_nulls: bool = True, options: object = None, memory_pool: MemoryPool | None = None
) -> _V: ...
def microsecond(values: _V, /, *, memory_pool: MemoryPool | None = None) -> _V: ...
def millisecond(values: _V, /, *, memory_pool: MemoryPool | None = None) -> _V: ...
def min_element_wise(
    *args: _V, skip_nulls: bool = True, options: object = None, memory_pool: MemoryPool | None = None
) -> _V: ...
def minute(values: _V, /, *, memory_pool: MemoryPool | None = None) -> _V: ...
def modulo(dividend: _V, divisor: _V | Scalar | _PyValue, /, *, memory_pool: MemoryPool | None = None) -> _V: ...
def month(values: _V, /, *, memory_pool: MemoryPool | None = None) -> _V: ...
def multiply(x: _V, y: _V | Scalar | _PyValue, /, *, memory_pool: MemoryPool | None = None) -> _V: ...
def multiply_checked(x: _V, y: _V | Scalar | _PyValue, /, *, memory_pool: MemoryPool | None = None) -> _V: ...
def nanosecond(values: _V, /, *, memory_pool: MemoryPool | None = None) -> _V: ...
def negate(x: _V, /, *, memory_pool: MemoryPool | None = None) -> _V: ...
@overload
def not_equal(x: Array, y: Array | Scalar | _PyValue, /, *, memory_pool: MemoryPool | None = None) -> BooleanArray: ...
@overload
def not_equal(x: _W, y: _W | Scalar | _PyValue, /, *, memory_pool: MemoryPool | None = None) -> _W: ...
@overload
def or_(x: Array, y: Array | Scalar | _PyValue, /, *, memory_pool: MemoryPool | None = None) -> BooleanArray: ...
@overload
def or_(x: _W, y: _W | Scalar | _PyValue, /, *, memory_pool: MemoryPool | None = None) -> _W: ...
@overload
def or_kleene(x: Array, y: Array | Scalar | _PyValue, /, *, memory_pool: MemoryPool | None = None) -> BooleanArray: ...
@overload
def or_kleene(x: _W, y: _W | Scalar | _PyValue, /, *, memory_pool: MemoryPool | None = None) -> _W: ...
def replace_substring(
    strings: _K,
    /,
    pattern: str,
    replacement: str,
    *,
    max_replacements: int | None = None,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> _K: ...
def replace_substring_regex(
    strings: _K,
    /,
    pattern: str,
    replacement: str,
    *,
    max_replacements: int | None = None,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> _K: ...
def round(
    x: _V,
    /,
    ndigits: int = 0,
    round_mode: str = "half_to_even",
    *,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> _V: ...
def second(values: _V, /, *, memory_pool: MemoryPool | None = None) -> _V: ...
def split_pattern(
    strings: _V,
    /,
    pattern: str,
    *,
    max_splits: int | None = None,
    reverse: bool = False,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> _V: ...
def split_pattern_regex(
    strings: _V,
    /,
    pattern: str,
    *,
    max_splits: int | None = None,
    reverse: bool = False,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> _V: ...
@overload
def starts_with(
    strings: Array,
    /,
    pattern: str,
    *,
    ignore_case: bool = False,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> BooleanArray: ...
@overload
def starts_with(
    strings: _W,
    /,
    pattern: str,
    *,
    ignore_case: bool = False,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> _W: ...
def strftime(
    timestamps: _V,
    /,
    format: str = "%Y-%m-%dT%H:%M:%S",
    locale: str = "C",
    *,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> _V: ...
@overload
def string_is_ascii(strings: Array, /, *, memory_pool: MemoryPool | None = None) -> BooleanArray: ...
@overload
def string_is_ascii(strings: _W, /, *, memory_pool: MemoryPool | None = None) -> _W: ...
def strptime(
    strings: _V,
    /,
    format: str,
    unit: _Unit,
    error_is_null: bool = False,
    *,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> _V: ...
def struct_field(
    values: _V, /, indices: Any, *, options: object = None, memory_pool: MemoryPool | None = None
) -> _V: ...
def subtract(x: _V, y: _V | Scalar | _PyValue, /, *, memory_pool: MemoryPool | None = None) -> _V: ...
def subtract_checked(x: _V, y: _V | Scalar | _PyValue, /, *, memory_pool: MemoryPool | None = None) -> _V: ...
def trunc(x: _V, /, *, memory_pool: MemoryPool | None = None) -> _V: ...
def utf8_length(strings: _V, /, *, memory_pool: MemoryPool | None = None) -> _V: ...
def utf8_lower(strings: _K, /, *, memory_pool: MemoryPool | None = None) -> _K: ...
def utf8_lpad(
    strings: _K,
    /,
    width: int,
    padding: str = " ",
    lean_left_on_odd_padding: bool = True,
    *,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> _K: ...
def utf8_ltrim(
    strings: _K, /, characters: str, *, options: object = None, memory_pool: MemoryPool | None = None
) -> _K: ...
def utf8_ltrim_whitespace(strings: _K, /, *, memory_pool: MemoryPool | None = None) -> _K: ...
def utf8_replace_slice(
    strings: _K,
    /,
    start: int,
    stop: int | None,
    replacement: str,
    *,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> _K: ...
def utf8_reverse(strings: _K, /, *, memory_pool: MemoryPool | None = None) -> _K: ...
def utf8_rpad(
    strings: _K,
    /,
    width: int,
    padding: str = " ",
    lean_left_on_odd_padding: bool = True,
    *,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> _K: ...
def utf8_rtrim(
    strings: _K, /, characters: str, *, options: object = None, memory_pool: MemoryPool | None = None
) -> _K: ...
def utf8_rtrim_whitespace(strings: _K, /, *, memory_pool: MemoryPool | None = None) -> _K: ...
def utf8_slice_codeunits(
    strings: _K,
    /,
    start: int,
    stop: int | None = None,
    step: int = 1,
    *,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> _K: ...
def utf8_split_whitespace(
    strings: _V,
    /,
    *,
    max_splits: int | None = None,
    reverse: bool = False,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> _V: ...
def utf8_trim(
    strings: _K, /, characters: str, *, options: object = None, memory_pool: MemoryPool | None = None
) -> _K: ...
def utf8_trim_whitespace(strings: _K, /, *, memory_pool: MemoryPool | None = None) -> _K: ...
def utf8_upper(strings: _K, /, *, memory_pool: MemoryPool | None = None) -> _K: ...
@overload
def xor(x: Array, y: Array | Scalar | _PyValue, /, *, memory_pool: MemoryPool | None = None) -> BooleanArray: ...
@overload
def xor(x: _W, y: _W | Scalar | _PyValue, /, *, memory_pool: MemoryPool | None = None) -> _W: ...
def year(values: _V, /, *, memory_pool: MemoryPool | None = None) -> _V: ...
def year_month_day(values: _V, /, *, memory_pool: MemoryPool | None = None) -> _V: ...

# -- aggregates

def all(
    array: _V,
    /,
    *,
    skip_nulls: bool = True,
    min_count: int = 1,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> Scalar: ...
def any(
    array: _V,
    /,
    *,
    skip_nulls: bool = True,
    min_count: int = 1,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> Scalar: ...
def count(
    array: _V,
    /,
    mode: Literal["only_valid", "only_null", "all"] = "only_valid",
    *,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> Scalar: ...
def count_distinct(
    array: _V,
    /,
    mode: Literal["only_valid", "only_null", "all"] = "only_valid",
    *,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> Scalar: ...
def first(
    array: _V,
    /,
    *,
    skip_nulls: bool = True,
    min_count: int = 1,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> Scalar: ...
def first_last(
    array: _V,
    /,
    *,
    skip_nulls: bool = True,
    min_count: int = 1,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> StructScalar: ...
def last(
    array: _V,
    /,
    *,
    skip_nulls: bool = True,
    min_count: int = 1,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> Scalar: ...
def max(
    array: _V,
    /,
    *,
    skip_nulls: bool = True,
    min_count: int = 1,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> Scalar: ...
def mean(
    array: _V,
    /,
    *,
    skip_nulls: bool = True,
    min_count: int = 1,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> Scalar: ...
def min(
    array: _V,
    /,
    *,
    skip_nulls: bool = True,
    min_count: int = 1,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> Scalar: ...
def min_max(
    array: _V,
    /,
    *,
    skip_nulls: bool = True,
    min_count: int = 1,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> StructScalar: ...
def sum(
    array: _V,
    /,
    *,
    skip_nulls: bool = True,
    min_count: int = 1,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> Scalar: ...

# -- whole columns

def cumulative_max(
    values: _V,
    /,
    start: _PyValue | Scalar = None,
    *,
    skip_nulls: bool = False,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> _V: ...
def cumulative_min(
    values: _V,
    /,
    start: _PyValue | Scalar = None,
    *,
    skip_nulls: bool = False,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> _V: ...
def cumulative_sum(
    values: _V,
    /,
    start: _PyValue | Scalar = None,
    *,
    skip_nulls: bool = False,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> _V: ...
def dictionary_encode(
    array: _V,
    /,
    null_encoding: Literal["mask", "encode"] = "mask",
    *,
    options: object = None,
    memory_pool: MemoryPool | None = None,
) -> _V: ...
def fill_null_backward(values: _V, /, *, memory_pool: MemoryPool | None = None) -> _V: ...
def fill_null_forward(values: _V, /, *, memory_pool: MemoryPool | None = None) -> _V: ...
def indices_nonzero(values: _V, /, *, memory_pool: MemoryPool | None = None) -> Array: ...
def list_flatten(
    lists: _V, /, recursive: bool = False, *, options: object = None, memory_pool: MemoryPool | None = None
) -> _V: ...
def replace_with_mask(
    values: _V,
    mask: _V | Scalar | _PyValue,
    replacements: _V | Scalar | _PyValue,
    /,
    *,
    memory_pool: MemoryPool | None = None,
) -> _V: ...
def run_end_decode(array: _V, /, *, memory_pool: MemoryPool | None = None) -> _V: ...
def run_end_encode(
    array: _V, /, run_end_type: DataType = ..., *, options: object = None, memory_pool: MemoryPool | None = None
) -> _V: ...
def unique(array: _V, /, *, memory_pool: MemoryPool | None = None) -> Array: ...
def value_counts(array: _V, /, *, memory_pool: MemoryPool | None = None) -> StructArray: ...

# -- other

def dictionary_decode(dictionary_array: _V, /, *, memory_pool: MemoryPool | None = None) -> _V: ...
def rank(
    input: Array | ChunkedArray,
    sort_keys: Literal["ascending", "descending"] | Sequence[tuple[str, str]] = "ascending",
    *,
    null_placement: Literal["at_start", "at_end"] = "at_end",
    tiebreaker: Literal["min", "max", "first", "dense"] = "first",
) -> Array: ...
