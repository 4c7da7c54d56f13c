"""What the machine really does: probes between ranks, the links and limits that explain them. See docs/profile.md."""
