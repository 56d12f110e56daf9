"""One call, whatever its door: from a message to an answer or an error, and how both are sent."""
