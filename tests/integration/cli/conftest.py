"""The command line, an index, and a service that answers."""

from tests.support.command_line import built, folder, qtm, qtm_process, service

__all__ = ["built", "folder", "qtm", "qtm_process", "service"]
