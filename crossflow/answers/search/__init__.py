"""Search: spaces, objectives and constraints, and searchers that all question one oracle [1]_.

References
----------
.. [1] Ardalani et al., "DeepFlow", ACM TODAES 29(2), 2024, Sec. 7.
"""
