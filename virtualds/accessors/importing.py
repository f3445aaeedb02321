"""Imports inside functions: one thread at a time does them."""

import os
import threading

importing = threading.RLock()
"""Held while the face imports what lies behind it.

Python locks a module and then its package; a package that imports this module locks them the other
way round. Where two threads do so at once, one of them gets half a module, or an error.
"""

if hasattr(os, "register_at_fork"):
    # a child process has none of the other threads, so nobody there would release the lock
    os.register_at_fork(
        before=importing.acquire,
        after_in_parent=importing.release,
        after_in_child=importing.release,
    )
