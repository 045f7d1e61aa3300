"""The engine under the producer: from an accepted message to its outcome."""
