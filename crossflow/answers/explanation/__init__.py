"""Why a prediction is what it is: parameters, what-ifs and bottlenecks, uncertain numbers, tornado plots."""
