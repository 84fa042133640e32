"""What runs on the engine: steps of transformers and recommendation models, programs, services.

`transformer` is one step of a pipeline of layers: `slots` are what its rows run, `sharded` the passes whose weights are gathered ahead,
`memory` what the fullest device holds meanwhile; `slot_events` and `timeline` tell when everything starts and ends, `uneven` on devices
that are not alike. `dlrm` runs recommendation models on in-order streams, `programs` any program, `service` many steps as a service
in steady state.

Takes priced programs; gives an `Outcome`, or a `Timeline`.
"""
