"""Many questions: a file of them transformed, killed and taken up again, with whatever does the work.

`transform_file` reads questions, skips those that its output holds already, and appends the others
as they are done.
"""

from __future__ import annotations

from qtmiddleware.kit.bulk.run import BulkReport, transform_file

__all__ = ["BulkReport", "transform_file"]
