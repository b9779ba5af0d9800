"""The parts of examples/serve.py: an example of Girih in a server, not a product. model -> pages -> engine -> server -> page.html."""
