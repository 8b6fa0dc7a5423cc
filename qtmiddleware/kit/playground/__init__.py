"""The playground: a question put to every tier side by side, as a page of a server on this machine."""
