"""Everything that still speaks asyncio, seen from Trio.

This module stays light: spawned children import it again before anything else.
"""
