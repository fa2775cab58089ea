"""The process that Spark forks its Python workers from: PySpark's daemon, changed for faster starts and tasks.

Spark starts this module by name (`spark.python.daemon.module`), on local masters only.
"""

import gc
import os
import socket
import sys

# Cache bytecode: Python worker processes start again and again, and without a cache each start compiles PySpark.
sys.dont_write_bytecode = False
# Remove the zipped PySpark, which Spark puts first on the path: bytecode of a zip is never cached.
sys.path[:] = [path for path in sys.path if not path.endswith((os.sep + "pyspark.zip", "-src.zip"))]

# Import before the fork, so that the workers share the modules. None of them starts threads; pandas and Arrow are left
# to the workers.
import pyspark.daemon  # noqa: E402
import pyspark.worker  # noqa: E402

import penstock.store.registry  # noqa: E402, F401

_serve = pyspark.daemon.worker
_frozen = False


def _serve_quietly(sock: socket.socket, authenticated: bool) -> int:
    global _frozen
    try:
        code = _serve(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        os._exit(0)  # Spark ended while this worker waited for a task: there is no process left to report to
    # PySpark collects garbage after every task, which traverses all imported modules for 20 ms. Freeze the modules once
    # and record this in a flag: counting the frozen objects would take half as long as the collection.
    if not _frozen:
        gc.collect()
        gc.freeze()
        _frozen = True
    return code


if __name__ == "__main__":
    pyspark.daemon.worker = _serve_quietly
    pyspark.daemon.manager()
