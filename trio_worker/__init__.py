"""A Dynamo worker for SGLang whose process is one Trio nursery tree.

This module stays light: spawned children import it again before anything else.
"""

__version__ = "0.1.0"
