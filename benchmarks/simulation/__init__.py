"""Systems that need devices which are not here: time is simulated, acceptance is not.

An acceptance is never simulated: it is recorded on the models. Time is: a discrete-event simulation
(SimPy) over the costs of calls measured in the same run. Before any row of it is shown, it must
give the clock of plain decoding, drafting and drafting ahead as it was measured.
"""
