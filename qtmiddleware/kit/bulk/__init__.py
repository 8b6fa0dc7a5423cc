"""Transform a file of many questions, in a run that can be stopped and continued.

`transform_file` skips questions that have a result in the output file, and appends each new result
as soon as it is ready. `transform_stream` transforms questions that your program yields.
"""

from __future__ import annotations

from qtmiddleware.kit.bulk.run import BulkReport, transform_file
from qtmiddleware.kit.bulk.stream import Transformed, transform_stream

__all__ = ["BulkReport", "Transformed", "transform_file", "transform_stream"]
