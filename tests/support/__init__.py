"""What several tests share: real servers, faults between them, and simulated time."""
