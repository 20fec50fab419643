"""Side-by-side measurements that a user can run: ``python -m bench``."""
