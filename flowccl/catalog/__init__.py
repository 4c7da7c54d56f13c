"""The plan catalog: many plans of one machine, chosen by collective and size; see docs/catalog.md."""
