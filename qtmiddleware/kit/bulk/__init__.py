"""Transform a file of many questions, in a run that can be killed and continued.

`transform_file` reads questions, skips those that its output contains already, and appends the
others as they are done.
"""

from __future__ import annotations

from qtmiddleware.kit.bulk.run import BulkReport, transform_file

__all__ = ["BulkReport", "transform_file"]
