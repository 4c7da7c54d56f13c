"""The choice of a plan at run time: by the rules of a catalog, and by measured times; see docs/catalog.md."""
