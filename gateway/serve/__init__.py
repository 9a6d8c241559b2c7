"""The process around a gateway: its command line, its server, several processes on one socket, its log."""
