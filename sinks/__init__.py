"""How an event leaves and what is written down: the partner, the signature, the request, the answer."""
