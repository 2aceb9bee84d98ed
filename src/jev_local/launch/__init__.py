"""From an empty machine to two running processes: models, children, supervision."""
