"""What the API shows of each pod: a pure projection of what is desired, done and seen (`project`), and its loop."""
