"""Destinations: dispatch of claimed events to publishers. `penstock.publish.registry` opens the publisher of a URL."""
