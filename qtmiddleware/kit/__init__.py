"""What people use around the middleware: documents, stores, measuring, pages, the command line.

The kit imports the core, which is everything else in `qtmiddleware`. The core never imports the
kit.
"""
