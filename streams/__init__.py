"""The event and its life in Redis: the envelope, the states of a delivery, the keys, and one script for each move."""
