"""Training scripts on one real rank of many: the other ranks are emulated at the collective calls [1]_.

References
----------
.. [1] Liu, Ding, Ojewale and Canini, "Towards a Flexible and High-Fidelity Approach to Distributed DNN Training Emulation", APSys 2024.
"""
