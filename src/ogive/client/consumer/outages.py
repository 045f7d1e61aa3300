"""One log line for a broker whose queues fail alike, instead of one for each queue."""

from ogive.model import MessageQueue


class Outages:
    """Queues whose requests fail."""

    def __init__(self) -> None:
        # with what it failed first
        self._failing: dict[MessageQueue, str] = {}

    def begins(self, queue: MessageQueue, error: str) -> bool:
        """Record that a request failed. Return True unless the queue, or another of its broker with
        the same error, is failing already.
        """
        known = {
            text for other, text in self._failing.items() if other.broker_name == queue.broker_name
        }
        is_news = queue not in self._failing and error not in known
        self._failing.setdefault(queue, error)
        return is_news

    def ends(self, queue: MessageQueue) -> bool:
        """Record that a request succeeded. Return True if none of its broker fails any more."""
        failed = self._failing.pop(queue, None) is not None
        return failed and all(other.broker_name != queue.broker_name for other in self._failing)
