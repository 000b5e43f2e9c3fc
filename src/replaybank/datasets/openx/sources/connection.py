"""Requests to a server that may be busy, slow or gone: tried again after growing pauses.

The requests themselves are the ``requests`` package's, which knows proxies, certificates and redirects.
"""

from __future__ import annotations

import email.utils
import os
import random
import re
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import requests

CONNECT_SECONDS: Final = 20.0
READ_SECONDS: Final = 60.0
"""A server that sends nothing for so long has gone."""
LONGEST_ASKED_PAUSE: Final = 300.0
"""Seconds; a ``Retry-After`` beyond it is a refusal."""
UNKNOWN_HOST_ATTEMPTS: Final = 2
"""Without a network no name is known, and waiting does not help."""
_BUSY: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_ABSENT: Final = frozenset({404, 410})
_FORBIDDEN: Final = frozenset({401, 403})
_CONTENT_RANGE: Final = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")
_random = random.SystemRandom()  # the pauses of many workers must differ, and nobody's seed is touched
_here = threading.local()


@dataclass(frozen=True)
class Retry:
    """How long to go on trying.

    Args:
        attempts: in a row without a single byte, before it is an error.
        first_pause: seconds after the first failure.
        factor: each pause is so many times the one before.
        longest_pause: seconds.
    """

    attempts: int = 6
    first_pause: float = 0.5
    factor: float = 2.0
    longest_pause: float = 30.0

    def pause(self, failures: int) -> float:
        """Seconds to wait after so many failures: up to a half more, by chance, so that workers spread."""
        pause = min(self.first_pause * self.factor ** (failures - 1), self.longest_pause)
        return pause * _random.uniform(1.0, 1.5)


RETRY: Final = Retry()
"""For whatever is not told otherwise: gives up after 15 to 25 seconds without a byte."""


class Broken(Exception):
    """A connection did not give what it should; to be tried again."""


class Busy(Exception):
    """A server said that it cannot answer now.

    Args:
        status: its code.
        seconds: how long it asks to wait; None where it does not say.
    """

    def __init__(self, status: int, seconds: float | None) -> None:
        super().__init__(f"the server answers {status}")
        self.seconds = seconds


class Connection:
    """Requests for one URL, and how often they failed in a row. Not thread-safe.

    Args:
        url: what is asked for.
        retry: how long to go on trying.
    """

    def __init__(self, url: str, retry: Retry) -> None:
        self.url = url
        self.retry = retry
        self.failures = 0

    def request(self, headers: Mapping[str, str]) -> requests.Response:
        """Ask for the file; the body is not read yet.

        Raises:
            ImportError: requests is not installed.
        """
        return session().get(
            self.url,
            headers={"Accept-Encoding": "identity", **headers},
            stream=True,
            timeout=(CONNECT_SECONDS, READ_SECONDS),
        )

    def check(self, answer: requests.Response) -> None:
        """Raise if an answer is not the file.

        Raises:
            FileNotFoundError: the server has no such file.
            PermissionError: the server does not give it.
            OSError: it answers something else.
            Busy: it says that it cannot answer now.
        """
        status = answer.status_code
        if status in _BUSY:
            raise Busy(status, _asked_pause(answer.headers.get("Retry-After")))
        if status in _ABSENT:
            raise FileNotFoundError(f"{self.url}: the server has no such file (status {status})")
        if status in _FORBIDDEN:
            raise PermissionError(f"{self.url}: the server does not give it (status {status})")
        if status not in (200, 206):
            raise OSError(f"{self.url}: the server answers {status} {answer.reason or ''}".rstrip())

    def trying(self, where: str = "") -> _Trying:
        """A context in which a failure that may pass is waited out: whoever uses it tries again after it.

        Args:
            where: put behind the reason in the message of the last error.
        """
        return _Trying(self, where)

    def works(self) -> None:
        """Something arrived: failures are counted anew."""
        self.failures = 0

    def failed(self, error: BaseException, where: str) -> None:
        """Wait, or raise ConnectionError if it was tried often enough."""
        self.failures += 1
        attempts = self.retry.attempts
        if _is_unknown_host(error):
            attempts = min(attempts, UNKNOWN_HOST_ATTEMPTS)
        asked = error.seconds if isinstance(error, Busy) and error.seconds is not None else 0.0
        if self.failures >= attempts or asked > LONGEST_ASKED_PAUSE:
            wait = f", and asks to wait {asked:.0f} seconds" if asked > LONGEST_ASKED_PAUSE else ""
            times = "once" if self.failures == 1 else f"{self.failures} times"
            raise ConnectionError(f"{self.url}: {_reason(error)}{where}{wait}; tried {times}") from error
        pause(max(asked, self.retry.pause(self.failures)))


class _Trying:
    def __init__(self, connection: Connection, where: str) -> None:
        self.connection = connection
        self.where = where

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None or not _may_pass(error):
            return False
        self.connection.failed(error, self.where)
        return True


def pause(seconds: float) -> None:
    """Wait between two attempts."""
    time.sleep(seconds)


def session() -> requests.Session:
    """This thread's session: its connections are kept open, and not shared with a forked process.

    Raises:
        ImportError: requests is not installed.
    """
    if getattr(_here, "process", None) != os.getpid():
        try:
            import requests
        except ImportError as error:
            raise ImportError("reading over HTTP needs requests: pip install 'replaybank[openx]'") from error
        _here.session = requests.Session()
        _here.process = os.getpid()
    found: requests.Session = _here.session
    return found


def content_range(answer: requests.Response) -> tuple[int, int | None]:
    """The first byte of an answer's body, and the bytes of the whole file, None where nobody says.

    Raises:
        Broken: the answer contradicts itself.
    """
    if answer.status_code != 206:
        length = answer.headers.get("Content-Length", "")
        coded = answer.headers.get("Content-Encoding", "identity") != "identity"
        return 0, int(length) if length.isdecimal() and not coded else None
    match = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
    if match is None:
        raise Broken("the server sent a part of the file without saying which")
    return int(match[1]), None if match[2] == "*" else int(match[2])


def _asked_pause(header: str | None) -> float | None:
    """Seconds that a ``Retry-After`` asks for: it has a number or a date."""
    if header is None:
        return None
    if header.strip().isdecimal():
        return float(header)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(header).timestamp() - time.time())
    except (TypeError, ValueError):
        return None


def _may_pass(error: BaseException) -> bool:
    import requests
    import urllib3

    if isinstance(error, (FileNotFoundError, PermissionError)):
        return False
    return isinstance(
        error,
        (
            Broken,
            Busy,
            requests.ConnectionError,
            requests.Timeout,
            requests.exceptions.ChunkedEncodingError,
            urllib3.exceptions.HTTPError,
            ConnectionError,
            TimeoutError,
        ),
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and all that it came from, through urllib3's and Python's own chains."""
    waiting: list[Any] = [error]
    seen: set[int] = set()
    while waiting:
        found = waiting.pop()
        if isinstance(found, BaseException) and id(found) not in seen:
            seen.add(id(found))
            yield found
            waiting.extend((found.__cause__, found.__context__, getattr(found, "reason", None), *found.args))


def _is_unknown_host(error: BaseException) -> bool:
    return any(type(found).__name__ == "NameResolutionError" for found in _causes(error))


def _reason(error: BaseException) -> str:
    """What went wrong, in words."""
    if isinstance(error, (Broken, Busy)):
        return str(error)
    if _is_unknown_host(error):
        return "the name of the server cannot be resolved (is there a network?)"
    for found in _causes(error):
        if isinstance(found, OSError) and found.strerror:
            return f"the connection failed: {found.strerror}"
    if any("Timeout" in type(found).__name__ for found in _causes(error)):
        return "no answer in time"
    return f"the connection failed: {' '.join(str(error).split())[:200]}"
