"""When everything starts and ends: operations on in-order streams, blocks that repeat, and an event engine for the rest."""
