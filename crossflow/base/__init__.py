"""What every wing stands on: quantities, files, errors, and the few things that all results can do.

Takes text, YAML and numbers; gives SI floats in numpy arrays whose last axis is the design point (`arrays`, `units`), files that are
read strictly, with the line of every mistake (`files`, `formats`, `paths`), and errors whose sentences name the place and the cure
(`errors`, `limits`, `rules`). `names` and `provenance` say what is written on results, `results` what each of them offers,
`contents` which files a run has read, `locks`, `signals` and `packages` deal with the machine, `platforms` with what operating systems
do differently, and `drawing` is what all pictures share.

It knows nothing of chips, models or strategies. Nothing here prints.
"""
