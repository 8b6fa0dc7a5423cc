"""Documents: finding them, reading them piece by piece, and cutting them into chunks that know their pages."""

from __future__ import annotations

from qtmiddleware.rag.documents.finding import find_documents
from qtmiddleware.rag.documents.paging import DocumentChunk, document_chunks
from qtmiddleware.rag.documents.piece import Piece
from qtmiddleware.rag.documents.reading import read_document

__all__ = ["DocumentChunk", "Piece", "document_chunks", "find_documents", "read_document"]
