"""The fairness laboratory: scheduling policies against each other in one simulator with a virtual clock.

`python -m bench.fairness` runs everything, writes RESULTS.md's tables, draws plots and checks the gates. Fairlane's part is
played by the real scripts on a real Redis, whose clock the simulator moves; the other policies are plain Python.

    workloads  what is asked for: the VTC paper's workloads, from their published parameters
    simulator  the server: slots, seconds per token, the clock
    policies   whose turn it is: first come first served, round robin, VTC, LCF
    fairlane   the same by Fairlane's scripts, each grant compared with the plain model of its rule
    measures   what came of it: service difference, shares, waits
    gates      what must hold, each a function
"""
