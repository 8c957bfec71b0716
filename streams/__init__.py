"""The event and its life in Redis: envelope, states of a delivery, keys, and one script for each move."""
