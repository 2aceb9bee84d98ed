"""`systemone doctor`: what is here, what would be started, what runs, and what to do next.

It looks and never touches: nothing is made, fetched or started. What is found is in `facts`, what follows from it in
`memory` and `steps`, which are pure; the other modules look, or write it down.
"""
