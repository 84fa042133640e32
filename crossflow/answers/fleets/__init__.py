"""The cheapest fleet for the requests of a service: how many engines of which kind, found by bounds and by replays of growing length."""
