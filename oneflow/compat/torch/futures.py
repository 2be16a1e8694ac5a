"""`torch.futures`: a value that comes later, from another thread of the program."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future as _Future
from typing import Any, Generic, TypeVar

__all__ = ["Future", "collect_all", "wait_all"]

T = TypeVar("T")


class Future(Generic[T]):
    """A value that comes later. devices: accepted; values may be anywhere."""

    def __init__(self, *, devices: object = None) -> None:
        self._inner: _Future[T] = _Future()

    def done(self) -> bool:
        """Return whether the value, or an error, is there."""
        return self._inner.done()

    def wait(self) -> T:
        """Wait for the value, and return it. Raises the error that was set."""
        return self._inner.result()

    def value(self) -> T:
        """Return the value, which must be there. Raises RuntimeError if it is not."""
        if not self.done():
            raise RuntimeError("Future.value: the value is not there yet; use wait()")
        return self.wait()

    def set_result(self, result: T) -> None:
        """Set the value, and run the callbacks that wait for it."""
        self._inner.set_result(result)

    def set_exception(self, result: BaseException) -> None:
        """Set an error in place of the value."""
        self._inner.set_exception(result)

    def add_done_callback(self, callback: Callable[[Future[T]], None]) -> None:
        """Call callback(future) when the value is there; at once, if it is."""
        self._inner.add_done_callback(lambda _: callback(self))

    def then(self, callback: Callable[[Future[T]], Any]) -> Future[Any]:
        """Return the future of callback(this future)."""
        after: Future[Any] = Future()

        def run(done: Future[T]) -> None:
            try:
                after.set_result(callback(done))
            except BaseException as error:
                after.set_exception(error)

        self.add_done_callback(run)
        return after


def collect_all(futures: Iterable[Future[Any]]) -> Future[list[Future[Any]]]:
    """Return the future of the list of futures, when all are done."""
    listed, every = list(futures), Future[list[Future[Any]]]()
    left = [len(listed)]

    def one_is_done(_: Future[Any]) -> None:
        left[0] -= 1
        if not left[0]:
            every.set_result(listed)

    for one in listed:
        one.add_done_callback(one_is_done)
    if not listed:
        every.set_result([])
    return every


def wait_all(futures: Iterable[Future[Any]]) -> list[Any]:
    """Wait for all futures, and return their values."""
    return [one.wait() for one in futures]
