"""What proposes the next candidates of a kernel."""
