"""Workers' connections: who may connect, and what is said over one."""
