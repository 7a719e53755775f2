"""Tables of other libraries through the Arrow interface: polars, duckdb, pyarrow and whatever else offers it."""

from __future__ import annotations

from typing import Any

import pandas as pd

from compensate.data.width import check_width
from compensate.errors import InputError
from compensate.extras import require


def is_arrow(data: Any) -> bool:
    """Whether this is a table that hands out its rows as Arrow does (``__arrow_c_stream__``).

    >>> is_arrow(pd.DataFrame({"a": [1]})), is_arrow([1])
    (True, False)
    """
    return hasattr(data, "__arrow_c_stream__")


def frame_of(data: Any) -> pd.DataFrame:
    """The data frame of such a table.

    >>> import pytest
    >>> pyarrow = pytest.importorskip("pyarrow")      # or: import pyarrow
    >>> frame_of(pyarrow.table({"size": [1, 2], "label": ["a", "b"]})).shape
    (2, 2)
    """
    if isinstance(data, pd.DataFrame):
        return data
    pyarrow = require("pyarrow", "reading tables of other libraries", "parquet")
    where = f"the table ({type(data).__module__.partition('.')[0]})"
    try:
        table = pyarrow.table(data)
        check_width(table.num_columns, where)
        return table.to_pandas()
    except InputError:
        raise
    except Exception as error:  # of Arrow, or of the library that is asked for its rows
        raise InputError(f"{where} cannot be read ({error}). Give its columns as a pandas data frame.") from error
