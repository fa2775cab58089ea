"""Publishers stay in the process that opened them: what they hold, sockets and files, means nothing in another."""

from typing import NoReturn


class Unpicklable:
    """Refuses to be pickled, even before it has connected, when nothing else would object."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} stays in its process; send its URL and open it there")
