"""Columns of the log's Parquet files: metadata, keys and payloads as Arrow, cheap if records share them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from itertools import chain, pairwise, repeat
from operator import is_
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from conduit_dagster.record import Data

Column = Any
"""A pyarrow array; the library has no types."""
REPEATED: Final = pa.dictionary(pa.int32(), pa.string())


def encode_constant(value: str, count: int) -> Column:
    """Encode the same value for every row."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([value], pa.string()))


def encode_repeated(values: list[str]) -> Column:
    """Encode values that often repeat; at least one."""
    if values.count(values[0]) == len(values):
        return encode_constant(values[0], len(values))
    return pa.array(values, pa.string()).dictionary_encode()


def decode_repeated(column: Column) -> list[str]:
    """Decode the values; equal ones are one shared string. No value may be null."""
    values, codes = codes_of(column)
    if len(values) == 1:
        return values * len(column)
    return list(map(values.__getitem__, codes.tolist()))


def codes_of(column: Column) -> tuple[list[str], Any]:
    """Return the distinct values, and a numpy array with each row's index into them. Some values may be unused."""
    if len(column.dictionary) > len(column):  # the dictionary is that of a whole row group
        column = column.dictionary_decode().dictionary_encode()
    return column.dictionary.to_numpy(zero_copy_only=False).tolist(), column.indices.to_numpy()


Metadata = dict[str, str]
_TILED: Final = 1 << 12
METADATA: Final = pa.map_(REPEATED, REPEATED)


class SharedMetadata:
    """The metadata of a block: each distinct object once, and an index per record."""

    def __init__(self, distinct: list[Metadata], count: int, index: Column | None = None) -> None:
        """``index``: which of several objects each record has; None if each record has its own, or all share one."""
        self.distinct, self._count, self._index = distinct, count, index

    @staticmethod
    def of(metadata: list[Metadata]) -> SharedMetadata:
        """Return the metadata column of a block, record by record."""
        count = len(metadata)
        if all(map(is_, metadata, repeat(metadata[0]))) or _all_alike(metadata):
            return SharedMetadata(metadata[:1], count)
        ids = list(map(id, metadata))
        distinct = list(dict(zip(ids, metadata, strict=True)).values())
        if len(distinct) == count:
            return SharedMetadata(distinct, count)
        places = {id(one): place for place, one in enumerate(distinct)}
        return SharedMetadata(distinct, count, pa.array(np.fromiter(map(places.__getitem__, ids), np.int64, count)))

    def array(self) -> Column:
        """Return the map column."""
        if len(self.distinct) == 1:
            return _repeated(self.distinct[0], self._count)
        keys = list(chain.from_iterable(self.distinct))
        items = list(chain.from_iterable(map(dict.values, self.distinct)))
        ends = np.cumsum([0, *map(len, self.distinct)], dtype=np.int32)
        distinct = pa.MapArray.from_arrays(pa.array(ends), _encoded(keys), _encoded(items))
        return distinct if self._index is None else distinct.take(self._index)

    def strings(self, value: Callable[[Metadata], str]) -> Column:
        """Return a column with the result of ``value`` for each record's metadata."""
        found = list(map(value, self.distinct))
        if len(found) == 1:
            return encode_constant(found[0], self._count)
        distinct = _encoded(found)
        if self._index is None:
            return distinct
        return pa.DictionaryArray.from_arrays(distinct.indices.take(self._index), distinct.dictionary)


def _repeated(metadata: Metadata, count: int) -> Column:
    """Return a column with the same map in every row; successive blocks of a source often repeat it."""
    return _tiled(tuple(metadata.items()), -(-count // _TILED) * _TILED).slice(0, count)


@lru_cache(maxsize=8)
def _tiled(items: tuple[tuple[str, str], ...], count: int) -> Column:
    ends = np.arange(count + 1, dtype=np.int32) * np.int32(len(items))
    keys, values = (_tiled_strings([pair[place] for pair in items], count) for place in (0, 1))
    return pa.MapArray.from_arrays(pa.array(ends), keys, values)


def _tiled_strings(strings: list[str], count: int) -> Column:
    one = _encoded(strings)
    return pa.DictionaryArray.from_arrays(pa.array(np.tile(one.indices.to_numpy(), count)), one.dictionary)


def _all_alike(metadata: list[Metadata]) -> bool:
    """Return whether all dicts are equal, with keys in the same order, even if they are different objects."""
    first = metadata[0]
    return first == metadata[-1] and metadata.count(first) == len(metadata) and len(set(map(tuple, metadata))) == 1


def _encoded(strings: list[str]) -> Column:
    return pa.array(strings, pa.string()).dictionary_encode()


def decode_metadata(column: Column) -> list[Metadata]:
    """Decode the column's dicts; equal rows share one, unless most are different."""
    ends = column.offsets.to_numpy()
    first, last = int(ends[0]), int(ends[-1])
    keys, key_codes = codes_of(column.keys.slice(first, last - first))
    items, item_codes = codes_of(column.items.slice(first, last - first))
    length = _length(key_codes, np.diff(ends))
    if length is not None:
        names = [keys[code] for code in key_codes[:length].tolist()]
        if _same_rows(item_codes, length):
            return [dict(zip(names, [items[code] for code in item_codes[:length].tolist()], strict=True))] * len(column)
        if len(items) > len(column) / 2:
            values = map(items.__getitem__, item_codes.tolist())
            return [dict(zip(names, row, strict=True)) for row in zip(*[values] * length, strict=True)]
    return _decode_rows(np.column_stack((key_codes, item_codes)), (ends - first).tolist(), keys, items)


def _length(key_codes: Any, lengths: Any) -> int | None:
    """Return how many keys each row has, if all rows have the same keys in the same order."""
    length = int(lengths[0])
    return length if (lengths == length).all() and _same_rows(key_codes, length) else None


def _same_rows(codes: Any, length: int) -> bool:
    return not length or bool((codes.reshape(-1, length) == codes[:length]).all())


def _decode_rows(pairs: Any, ends: list[int], keys: list[str], items: list[str]) -> list[Metadata]:
    # a row's codes, as bytes, identify its content: a row seen before costs one slice and one lookup
    width = pairs.dtype.itemsize * 2
    data, known, rows = pairs.tobytes(), dict[bytes, Metadata](), list[Metadata]()
    for start, end in pairwise(ends):
        row = data[start * width : end * width]
        found = known.get(row)
        if found is None:
            found = known[row] = {keys[k]: items[v] for k, v in pairs[start:end].tolist()}
        rows.append(found)
    return rows


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


def encode_payload(values: list[Data]) -> tuple[Column, Column]:
    """Encode payloads to bytes and kinds. Raises msgspec's error for a document that JSON can't hold."""
    kind, count = _kind(values[0]), len(values)
    if kind == "null" and values.count(None) == count:
        return pa.nulls(count, pa.binary()), encode_constant(kind, count)
    if kind == "raw":
        with suppress(pa.ArrowTypeError):  # of a document among them
            data = pa.array(values, pa.binary())
            if not data.null_count:
                return data, encode_constant(kind, count)
    # msgspec would accept raw data as well, and write it as Base64
    if kind == "document" and set(map(type, values)) == {dict}:
        return pa.array(list(map(_encode, values)), pa.binary()), encode_constant(kind, count)
    kinds = list(map(_kind, values))
    mixed = [_encode(value) if kind == "document" else value for value, kind in zip(values, kinds, strict=True)]
    return pa.array(mixed, pa.binary()), encode_repeated(kinds)


def _kind(value: Data) -> str:
    if value is None:
        return "null"
    return "document" if isinstance(value, dict) else "raw"


def decode_payload(data: Column, kinds: Column) -> list[Data]:
    """Decode the values, each to a new object. Raises ``msgspec.DecodeError`` for text that is not a document."""
    if data.null_count == len(data):
        return [None] * len(data)
    values: list[Any] = data.to_numpy(zero_copy_only=False).tolist()
    kind = decode_repeated(kinds)
    documents = kind.count("document")
    if not documents:
        return values
    if documents == len(values):
        return list(map(_decode, values))
    return [_decode(value) if kind[i] == "document" else value for i, value in enumerate(values)]
