"""Transform a file of many questions, in a run that can be stopped and continued.

`transform_file` reads the questions, skips questions that are done in the output already, and
appends the result of each other question as soon as it is done.
"""

from __future__ import annotations

from qtmiddleware.kit.bulk.run import BulkReport, transform_file

__all__ = ["BulkReport", "transform_file"]
