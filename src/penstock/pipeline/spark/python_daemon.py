"""The process that Spark forks its Python workers from: PySpark's own daemon, made to start faster.

Spark starts it by name (`spark.python.daemon.module`), on local masters only.
"""

import gc
import os
import socket
import sys

# Workers of one program are started again and again: without its bytecode, each start compiles PySpark anew.
sys.dont_write_bytecode = False
# Spark puts its zipped PySpark first on the path, and nothing caches the bytecode of a zip.
sys.path[:] = [path for path in sys.path if not path.endswith((os.sep + "pyspark.zip", "-src.zip"))]

# Imported before the fork, so that the workers share it. It starts no threads: pandas and Arrow come later.
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
        os._exit(0)  # Spark went away while this worker was waiting: nobody is left to tell
    # After every task PySpark has all that was ever imported searched for garbage, for 20 ms: once is enough. Whether
    # it was done is kept here, as to count what is frozen takes half as long.
    if not _frozen:
        gc.collect()
        gc.freeze()
        _frozen = True
    return code


if __name__ == "__main__":
    pyspark.daemon.worker = _serve_quietly
    pyspark.daemon.manager()
