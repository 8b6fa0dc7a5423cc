"""From files to a searchable index, again and again at little cost.

    documents -> chunks -> [contexts] -> vectors -> one write to the store

Everything on the way is kept in a ledger, the SQLite file ``<indexPath>.ingest`` beside the index, as soon as it is
made; the store gets it all at the very end, in one write. So a run that was killed goes on where it was, no text is
embedded twice, and an atomic store never shows half of a run. The ledger holds the texts of the documents and is
readable by its owner alone. It can be deleted at any time: the next run makes it anew, at the price of embedding again,
and does not know any more which passages of earlier runs have to leave the store.
"""

from __future__ import annotations

from qtmiddleware.rag.ingestion.report import IngestReport, Progress, Skipped, Stage
from qtmiddleware.rag.ingestion.run import ingest

__all__ = ["IngestReport", "Progress", "Skipped", "Stage", "ingest"]
