"""Convert between numpy arrays, Python rows and the parquet tables of a dataset."""

import io
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from robot_rl.data.lerobot import DEFAULT_FEATURES, DatasetError, Feature

Array = np.ndarray[Any, np.dtype[Any]]


def to_arrow(values: Array, feature: Feature) -> pa.Array:
    """Return values (T, *shape) in LeRobot's storage type: scalars, fixed-length lists, or nested lists."""
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    if feature.shape == (1,):
        return flat
    if len(feature.shape) == 1:
        return pa.FixedSizeListArray.from_arrays(flat, feature.shape[0])
    for size in reversed(feature.shape):
        flat = pa.ListArray.from_arrays(np.arange(0, len(flat) + 1, size, dtype=np.int32), flat)
    return flat


def from_arrow(column: pa.ChunkedArray, feature: Feature, where: str = "") -> Array:
    """Return a stored column as values (T, *shape) of the feature's dtype, converted from the file's number type.

    DatasetError if the shape differs or a conversion to whole numbers or bool is lossy; its text begins with `where`.
    """
    flat = column.combine_chunks()
    while isinstance(flat, pa.ExtensionArray):
        flat = flat.storage
    while pa.types.is_list(flat.type) or pa.types.is_large_list(flat.type) or pa.types.is_fixed_size_list(flat.type):
        flat = flat.flatten()
    try:
        stored = flat.to_numpy(zero_copy_only=False)
        with np.errstate(invalid="ignore", over="ignore"):
            values = stored.astype(feature.dtype, copy=False)
        if values.dtype.kind != "f" and (values != stored).any():
            raise ValueError(f"{stored[values != stored][0]} cannot be stored so")
        return np.ascontiguousarray(values).reshape(len(column), *feature.shape)
    except (TypeError, ValueError, OverflowError, pa.ArrowException) as error:
        fault = f"is not {feature.dtype} of shape {feature.shape} ({error})"
        raise DatasetError(f"{where} {fault}; restore it from a copy" if where else fault) from error


def encode_table(table: pa.Table) -> memoryview:
    """Return a table as the bytes of a parquet file, with checksums."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="snappy", use_dictionary=True, write_page_checksum=True)
    return buffer.getbuffer()


def read_table(path: Path, wanted: Callable[[str], bool] = lambda name: True) -> pa.Table:
    """Read the columns of a parquet file that are `wanted`; verify the file's checksums if it has any."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            return file.read([name for name in file.schema_arrow.names if wanted(name)], use_threads=False)
    except FileNotFoundError:
        raise DatasetError(f"{path} is missing; restore it from a copy") from None
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DatasetError(f"{path} is truncated or damaged ({reason}); restore it from a copy") from error


def read_rows(path: Path, keys: Collection[str]) -> pa.Table:
    """Read columns of a data file, and its column `index` with the dataset row of each frame."""
    table = read_table(path, lambda name: name == "index" or name in keys)
    if absent := {*keys, "index"} - set(table.column_names):
        raise DatasetError(f"{path} has no column '{min(absent)}'; restore it from a copy")
    return table


def row_places(table: pa.Table, rows: Array, path: Path) -> Array:
    """Return the positions (n,) of ascending dataset rows (n,) in a data file's table."""
    index = from_arrow(table["index"], DEFAULT_FEATURES["index"], f"{path}: 'index'").reshape(-1)
    places = np.searchsorted(index, rows)
    if len(rows) and (places.max() >= len(index) or (index[places] != rows).any()):
        raise DatasetError(f"{path} lacks some of rows {rows[0]} to {rows[-1]}; restore it")
    return places


def encode_tasks(tasks: Sequence[str]) -> memoryview:
    """Return the bytes of `tasks.parquet`, which pandas reads as a data frame with the instructions as index."""
    name = "__index_level_0__"
    text = {"name": None, "field_name": name, "pandas_type": "unicode", "numpy_type": "object", "metadata": None}
    number = {"name": "task_index", "field_name": "task_index", "pandas_type": "int64", "numpy_type": "int64"}
    pandas = {
        "index_columns": [name],
        "column_indexes": [{**text, "field_name": "None", "metadata": {"encoding": "UTF-8"}}],
        "columns": [{**number, "metadata": None}, text],
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": "2.2.0",
    }
    table = pa.table({"task_index": pa.array(range(len(tasks)), pa.int64()), name: pa.array(tasks, pa.string())})
    return encode_table(table.replace_schema_metadata({"pandas": json.dumps(pandas)}))


def read_tasks(path: Path) -> list[str]:
    """Return the instructions of `tasks.parquet` in the order of their index."""
    table = read_table(path)
    names = [name for name in ("task", "__index_level_0__") if name in table.column_names]
    names += [name for name in table.column_names if name != "task_index"]
    if "task_index" not in table.column_names or not names:
        raise DatasetError(f"{path} has columns {table.column_names}; it needs 'task_index' and the sentences")
    rows = zip(table["task_index"].to_pylist(), table[names[0]].to_pylist(), strict=True)
    return [str(task) for _, task in sorted(rows)]


def plain_value(key: str, value: Any) -> Any:
    """Return a record's value as a bool, number, string, flat list or None; DatasetError for any other value."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        items = [plain_value(key, item) for item in value]
        if not any(isinstance(item, list) or item is None for item in items):
            return items
    elif value is None or isinstance(value, bool | int | float | str):
        return value
    raise DatasetError(f"record '{key}' is {value!r}; give a number, bool, string or flat list of one of these")


def wider_type(key: str, known: pa.DataType, value: pa.DataType) -> pa.DataType:
    """Return a column type for both the old values and the new values of a record; DatasetError if no type fits."""
    if pa.types.is_null(value) or known == value:
        return known
    if pa.types.is_null(known):
        return value
    if pa.types.is_list(known) and pa.types.is_list(value):
        return pa.list_(wider_type(key, known.value_type, value.value_type))
    if {known, value} == {pa.int64(), pa.float64()}:
        return pa.float64()
    raise DatasetError(f"record '{key}' was {known} in earlier episodes and is {value} now; give it one type")


def rows_to_table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema | None) -> tuple[pa.Table, pa.Schema]:
    """Return rows as a table, and a schema for these and all earlier rows.

    Args:
        rows: One mapping from column to plain value per row; a column may be absent.
        schema: Schema of the earlier rows, None if there are none.
    """
    types: dict[str, pa.DataType] = {} if schema is None else dict(zip(schema.names, schema.types, strict=True))
    for row in rows:
        for key, value in row.items():
            try:
                kind = pa.infer_type([value])
            except pa.ArrowException as error:
                raise DatasetError(f"record '{key}': {error}; give a list of one type") from error
            known = types.get(key, pa.null())
            if key.startswith("stats/"):
                types[key] = kind  # LeRobot stores bool statistics for bool columns; this writer stores numbers
            elif pa.types.is_fixed_size_list(known) or pa.types.is_large_list(known):
                types[key] = known  # another program's file
            else:
                types[key] = wider_type(key, known, kind)
    types = {key: _known_type(kind) for key, kind in types.items()}
    wide = pa.schema(list(types.items()))
    try:
        return pa.table({key: pa.array([row.get(key) for row in rows], kind) for key, kind in types.items()}), wide
    except (pa.ArrowException, OverflowError) as error:
        raise DatasetError(f"an episode's record cannot be stored ({error}); check its numbers") from error


def widen(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a table with all columns of a schema; values of added columns are null."""
    columns = {
        field.name: table[field.name].cast(field.type, safe=False)
        if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    }
    return pa.table(columns, schema=schema)


def _known_type(kind: pa.DataType) -> pa.DataType:
    """Return a type with float64 in place of null, which is the type of columns with only empty values."""
    if pa.types.is_null(kind):
        return pa.float64()
    if pa.types.is_list(kind):
        return pa.list_(_known_type(kind.value_type))
    return kind
