"""Stand-ins for services that tests cannot own, each a real server in a process of its own."""
