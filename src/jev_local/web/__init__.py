"""HTTP as this service speaks it: what surrounds every request, and the handlers. `app.py` puts it together."""
