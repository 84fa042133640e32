"""Requests of a service: when they arrive, how long they are, which of them follow others, and what they share.

`record` holds them as arrays, whatever they came from. `spec` is the section of a scenario that asks for them, with the laws of `laws`:
`reading` takes them from traces (`formats` recognises columns, `tables` and `cells` read them), `scaling` takes parts of a trace and gives
it other times; `draws` draws them (`arriving`, `numbers`, with the generators of `dice`), and `shared` gives their prompts hashes. `asking`
is the way from a section to requests; `describe`, `picture` and `writing` are what becomes of them without a service.
"""
