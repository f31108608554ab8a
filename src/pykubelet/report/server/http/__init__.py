"""The server itself: sockets, the words on the wire, whole and streamed answers, and connections handed over."""
